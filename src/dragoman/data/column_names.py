"""What people call the columns of a table: names that tell a header row from data, and a source from a target."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from dragoman.data.columns import ROLES

NamedRole = Literal["source", "target", "features", "source_lang", "target_lang", "language", "count", "ignored"]

_NAMES: dict[NamedRole, str] = {
    "source": "source src source_text source_sentence input inputs word words wordform word_form lemma lexeme headword "
    "orthography orthographic grapheme graphemes spelling written native native_word question query sentence text "
    "original noisy misspelling document article prompt utterance",
    "target": "target tgt trg target_text target_sentence output outputs ipa phones phone phonemes phoneme "
    "phonetic phonetics pronunciation transcription transcript arpabet sampa x_sampa xsampa transliteration "
    "romanization romanisation romanized romanised translation translated inflected inflected_form inflection form "
    "answer answers correction corrected normalized normalised summary response reply caption lambda sql reference",
    "features": "features feats feature feat msd morph morphology morphosyntax tags tag unimorph",
    "source_lang": "source_lang source_language src_lang from_lang",
    "target_lang": "target_lang target_language tgt_lang trg_lang to_lang",
    "language": "lang language langcode lang_code language_code locale iso iso639 iso_639_3 glottocode",
    "count": "count counts freq frequency frequencies occurrences attestations weight score n",
    "ignored": "id idx index no nr number line row key uid uuid gloss glosses meaning definition english_gloss note "
    "notes comment comments remark remarks pos part_of_speech example url link author date dialect speaker category "
    "split",
}
KNOWN_NAMES = {name: role for role, names in _NAMES.items() for name in names.split()}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LANGUAGE_NAMES = _words(
    "afrikaans albanian amharic arabic armenian assamese azerbaijani basque belarusian bengali bosnian breton "
    "bulgarian burmese catalan chinese croatian czech danish dutch english esperanto estonian faroese finnish "
    "french galician georgian german greek gujarati haitian hausa hebrew hindi hungarian icelandic igbo "
    "indonesian irish italian japanese javanese kannada kazakh khmer kinyarwanda korean kurdish kyrgyz lao latin "
    "latvian lithuanian luxembourgish macedonian malagasy malay malayalam maltese maori marathi mongolian nepali "
    "norwegian oromo pashto persian polish portuguese punjabi quechua romanian russian sanskrit scottish serbian "
    "shona sinhala slovak slovene slovenian somali spanish sundanese swahili swedish tagalog tajik tamil tatar "
    "telugu thai tibetan tigrinya turkish turkmen ukrainian urdu uyghur uzbek vietnamese welsh wolof xhosa "
    "yiddish yoruba zulu pidgin "
)
# ISO 639-1, and the three letters of languages that data sets of our tasks are often of.
LANGUAGE_CODES = _words(
    "aa ab af ak am ar as ay az ba be bg bm bn bo br bs ca ce co cs cv cy da de dv dz ee el en eo es et eu fa ff fi fj "
    "fo fr fy ga gd gl gn gu gv ha he hi hr ht hu hy id ig is it iu ja jv ka kg ki kk kl km kn ko ku kv kw ky la lb lg "
    "ln lo lt lv mg mi mk ml mn mr ms mt my nb ne nl nn no nv ny oc om or os pa pl ps pt qu rm rn ro ru rw sa sc sd se "
    "sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi wo xh yi yo "
    "za zh zu "
    "ady afr amh ang ara arm aze bel ben bul cat ces cym dan deu dut ell eng epo est eus fao fas fin fra fre geo ger "
    "gle glg gre grc heb hin hrv hun hye ice ind isl ita jpn kan kat kaz kbd khm kor kur lat lav lit ltz mal mar mkd "
    "mlt mon mya nep nld nob nno nor pan pcm pol por que ron rus san slk slv som spa sqi srp swa swe swh tam tel tgl "
    "tha tur ukr urd uzb vie wel xho yor zho zul"
)


def normalize_name(name: str) -> str:
    """A name without case, spaces and punctuation: "Word Form" is word_form."""
    return re.sub(r"\W+", "_", name.strip().lower()).strip("_")


def named_role(name: str) -> NamedRole | None:
    """What a column of this name holds; None for a name that says nothing."""
    return KNOWN_NAMES.get(normalize_name(name))


def is_header(cells: Sequence[str]) -> bool:
    """Whether all cells of a first row are names of columns, so that it is a header and no pair."""
    names = [normalize_name(cell) if cell.strip() != "-" else "-" for cell in cells if cell.strip()]
    if not names:
        return False
    if all(name in ROLES for name in names) and {"source", "target"} & set(names):
        return True
    return len(set(names)) > 1 and all(name in KNOWN_NAMES for name in names)
