/* Views drawn by the functions that their modules have put into VIEWS, and several views as tabs.

     draw(root, data, actions)        one view; data.view names it
     drawTabs(root, views, actions)   a tab for each; a view is drawn when its tab is first opened

   A view "beside" is the same view of two models.

   actions, each of them optional: force(ids), head(name, off), open(view, request). */

import { VIEWS, cut, make, refill } from "./dom.js";

VIEWS.beside = ["Beside", drawBeside];

export function draw(root, data, actions = {}) {
  const view = VIEWS[data.view];
  if (!view) return refill(root, make("p", {}, `This page cannot draw a view called '${data.view}'.`));
  view[1](root, data, actions);
}

export function drawTabs(root, views, actions = {}) {
  const sources = new Set(views.map((view) => view.source_text).filter((text) => text != null));
  const panels = views.map((_, i) =>
    make("section", { role: "tabpanel", id: `panel-${i}`, "aria-labelledby": `tab-${i}`, hidden: true }),
  );
  const tabs = views.map((view, i) => {
    const press = { type: "button", role: "tab", id: `tab-${i}`, "aria-controls": `panel-${i}`, click: () => open(i) };
    return make("button", press, tabName(view, sources.size > 1));
  });
  const open = (index) => {
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === index));
      tab.tabIndex = i === index ? 0 : -1;
      panels[i].hidden = i !== index;
    });
    // Not before: charts take the width of the page, and a hidden panel has none.
    if (!panels[index].hasChildNodes()) draw(panels[index], views[index], actions);
  };
  const keys = (event) => moveTab(event, tabs, open);
  const list = make("div", { role: "tablist", class: "tabs", "aria-label": "Views", keydown: keys }, tabs);
  refill(root, views.length > 1 && list, panels);
  if (views.length) open(0);
}

/** The same view of several models: one below the other where it is of pictures, which are wide. */
function drawBeside(root, { models, views }, actions) {
  const boxes = views.map(() => make("div", {}));
  const each = boxes.map((box, i) => make("section", { "data-model": models[i] }, make("h3", {}, models[i]), box));
  refill(root, make("div", { class: views.some((view) => view.media_preview) ? "models wide" : "models" }, each));
  views.forEach((view, i) => draw(boxes[i], view, actions));
}

/** A view's name; with the beginning of its source where there are several. */
function tabName(view, named) {
  const { view: kind } = view.views?.[0] ?? view;
  const name = VIEWS[kind]?.[0] ?? kind;
  return named && view.source_text != null ? [name, make("bdi", { class: "faint" }, cut(view.source_text, 120))] : name;
}

function moveTab(event, tabs, open) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const next = (tabs.indexOf(document.activeElement) + by + tabs.length) % tabs.length;
  open(next);
  tabs[next].focus();
}
