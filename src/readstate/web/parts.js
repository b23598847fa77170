/** What several views are made of. */

import { button, h } from "./dom.js";
import { icon } from "./icons.js";

/** A person's initial in the person's colour. */
export function avatar(d, id) {
  const initial = d.session.nameOf(id).slice(0, 1).toUpperCase();
  return h("span", { class: `picture hue-${d.session.hueOf(id)}`, "aria-hidden": "true" }, initial);
}

/** Never by colour alone: an @ for a mention, a number for a count, a dot for anything at all. */
export function marks(u) {
  return [
    u.mentions > 0 && h("span", { class: "mention" }, "@"),
    u.label && h("span", { class: "pill" }, u.label),
    !u.label && u.has_unread && h("span", { class: "dot" }),
  ];
}

/** The bar over what is open; the heading takes the focus when it opens. */
export function head(d, title, name) {
  return h(
    "div",
    { class: "app-bar", key: "head" },
    button({ class: "quiet back", "aria-label": "Back to chats", onclick: () => d.back() }, icon("back")),
    h("h4", { tabindex: "-1", "data-focus": name }, title),
  );
}
