/* What comes before the playground: which of its two pages is shown, how far the models are decoded, and their cards.

     #simple → the page of one box          everything else → the playground, whose state is the fragment */

import { make } from "../views/dom.js";
import { openModels } from "./local_server.js";

const SIMPLE = "#simple";
const isSimple = () => location.hash === SIMPLE;
const shown = isSimple() ? "simple" : "page";

/** The module that fills in the page that is shown. */
export const entry = shown;

const template = document.getElementById(`${shown}-template`);
document.getElementById("incomplete").remove();
document.body.classList.toggle("simple", isSimple());
document.body.prepend(template.content.cloneNode(true));

window.addEventListener("hashchange", () => {
  if (isSimple() !== (shown === "simple")) location.reload();
});

const bar = make("progress", { max: 1, value: 0, "aria-labelledby": "opening-label" });
const progress = make("p", { id: "opening", role: "status" }, make("span", { id: "opening-label" }, "Opening the model"), bar);
const main = document.querySelector("main");
main.prepend(progress);

openModels((fraction) => (bar.value = fraction)).then(
  (models) => {
    progress.remove();
    main.append(cardsOf(models));
  },
  () => progress.remove(), // the page says why
);

/** What this file holds, as the exported models say it. */
function cardsOf(models) {
  const cards = models.map(({ card }) => {
    const lines = card.map(([name, text]) => [make("dt", {}, name), make("dd", {}, make("bdi", {}, text))]);
    return make("dl", { class: "texts" }, lines);
  });
  const summary = make("summary", {}, models.length > 1 ? "About these models" : "About this model");
  return make("details", { class: "card" }, summary, cards);
}
