/** Small line drawings on a grid of 24, in the colour of the text around them. */

import { h } from "./dom.js";

const PATHS = {
  phone: "M8 2.5h8a2 2 0 0 1 2 2v15a2 2 0 0 1-2 2H8a2 2 0 0 1-2-2v-15a2 2 0 0 1 2-2zM11 18.5h2",
  laptop: "M5.5 5h13a1 1 0 0 1 1 1v9.5h-15V6a1 1 0 0 1 1-1zM2.5 18.5h19",
  hash: "M9.5 4 7.5 20M16.5 4l-2 16M4.5 9h16M3.5 15h16",
  people: "M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM2.5 20c0-3.5 3-6 6.5-6s6.5 2.5 6.5 6M16 4.5a3.5 3.5 0 0 1 0 6.5M18 14.5c2.1.8 3.5 2.8 3.5 5.5",
  muted: "M4 4l16 16M9.5 5a5 5 0 0 1 7.5 4.5c0 2 .4 3.5 1 4.6M7.2 8c-.2.5-.2 1-.2 1.5 0 4.5-2 6-2 7h11.5M10 20a2.2 2.2 0 0 0 4 0",
  bell: "M12 4a5 5 0 0 0-5 5.5c0 4.5-2 6-2 7h14c0-1-2-2.5-2-7A5 5 0 0 0 12 4zM10 20a2.2 2.2 0 0 0 4 0",
  pin: "M9 3.5h6M10 3.5v6L7 13v1.5h10V13l-3-3.5v-6M12 14.5V21",
  back: "M14.5 5 8 12l6.5 7",
  more: "M5.5 12h.01M12 12h.01M18.5 12h.01",
  thread: "M4 5h16v10H10l-4.5 4v-4H4zM8 9h8M8 11.8h5",
  why: "M9 9a3 3 0 1 1 4.5 2.6c-1 .6-1.5 1.2-1.5 2.4M12 17.5h.01",
  close: "M6 6l12 12M18 6 6 18",
  send: "M4 12 20 4.5 15 20l-4-6.5zM11 13.5 20 4.5",
  away: "M4 13l3-8h10l3 8v6H4zM4 13h5l1 2.5h4l1-2.5h5",
  check: "M5 12.5 10 17.5 19.5 7",
};

/** A drawing that says nothing to a screen reader: the text beside it does. */
export function icon(name) {
  return h(
    "svg",
    { class: `icon icon-${name}`, viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" },
    h("path", { d: PATHS[name] }),
  );
}
