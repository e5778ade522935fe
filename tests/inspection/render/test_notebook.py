"""A prediction that draws itself: well-formed, literal, and with the numbers that the prediction has."""

from xml.etree import ElementTree

import numpy as np
import pytest

import dragoman
from dragoman.inference.prediction import Prediction
from dragoman.inspection.render.notebook import render_prediction

SVG = "{http://www.w3.org/2000/svg}"


def prediction(text="<script>x</script>", tokens=("<b>", "é"), weights=((0.1, 0.9), (0.5, 0.5), (1.0, 0.0))):
    return Prediction(
        text, -1.0, -1.2345, list(tokens), [-1.0, -0.2], "eos", ["a&b", "</s>"], attention=np.array(weights)
    )


def test_a_drawn_prediction_is_well_formed_and_shows_tags_literally():
    root = ElementTree.fromstring(render_prediction(prediction()))
    assert root.find("b").text == "<script>x</script>"
    assert "log p -1.234" in root.find("small").text
    labels = [text.text for text in root.iter(f"{SVG}text")]
    assert labels == ["<b>", "é", "</s>", "a&b", "</s>"]


def test_every_weight_has_its_square_and_says_its_number():
    root = ElementTree.fromstring(render_prediction(prediction()))
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert len(titles) == 6
    assert titles[1] == "<b> ← </s>: 0.90"
    opacities = [float(rect.get("fill-opacity")) for rect in root.iter(f"{SVG}rect")]
    assert np.argsort(opacities)[-1] == 4  # the weight of 1
    assert np.argsort(opacities)[0] == 5  # the weight of 0


def test_alternatives_are_listed_and_a_prediction_without_attention_has_no_picture():
    plain = Prediction("one", 0.0, 0.0, ["one"], [0.0], "eos", ["x"], alternatives=[prediction("two")])
    root = ElementTree.fromstring(render_prediction(plain))
    assert [item.text.strip() for item in root.iter("li")] == ["two"]
    assert not list(root.iter(f"{SVG}svg"))


def test_the_package_gives_predictions_their_picture():
    assert dragoman.Prediction is Prediction
    assert prediction()._repr_html_() == render_prediction(prediction())


def test_a_prediction_of_a_model_that_sees_draws_its_picture_for_each_word(media):
    model, source = media("soft")
    found = model.predict([source], attention=True)[0]
    root = ElementTree.fromstring(found._repr_html_())
    images, words = list(root.iter(f"{SVG}image")), len(found.tokens) + 1
    assert [image.get("href") for image in images] == [
        found.media_preview["src"]
    ]  # once; the others are the same again
    name = images[0].get("id")
    assert [use.get("href") for use in root.iter(f"{SVG}use")] == [f"#{name}"] * (words - 1)
    veils = np.array([float(rect.get("fill-opacity")) for rect in root.iter(f"{SVG}rect")]).reshape(words, 16)
    np.testing.assert_array_equal(veils.argmin(1), found.attention.argmax(1))
    assert len(list(root.iter(f"{SVG}path"))) == 2 * words  # around the strongest cell of each
    titles = [title.text for title in root.iter(f"{SVG}title")]
    row, column = divmod(int(found.attention[0].argmax()), 4)
    assert titles[0].endswith(f"looks mostly at row {row + 1}, column {column + 1}")
    assert found.media_preview["src"] not in repr(found)


@pytest.mark.parametrize(("kind", "pictures", "each"), [("speech", 1, 8), ("cells", 3, 48), ("asked", 1, 16)])
def test_sounds_clips_and_two_sources_draw_themselves_too(media, kind, pictures, each):
    model, source = media(kind)
    found = model.predict([source], attention=True)[0]
    root = ElementTree.fromstring(render_prediction(found))
    assert len(list(root.iter(f"{SVG}image"))) == pictures
    assert len(list(root.iter(f"{SVG}rect"))) == each * (len(found.tokens) + 1)


def test_without_attention_no_picture_is_made(media):
    model, source = media("soft")
    assert model.predict([source])[0].media_preview is None
