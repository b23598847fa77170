/** How a device looks: its frame, its two switches, and the list of conversations. */

import { channel, empty, thread } from "./chat.js";
import { button, h, roving } from "./dom.js";
import { icon } from "./icons.js";
import { away, threads, why } from "./panels.js";
import { avatar, marks } from "./parts.js";
import { ago, label, plural } from "./session.js";

const STATES = {
  idle: "starting",
  connecting: "connecting",
  live: "live",
  offline: "offline",
  closed: "closed",
};
const PANES = { channel, thread, threads, away, chats: empty };

/** Everything of a device, from what it knows now. */
export function device(d) {
  const state = d.online ? STATES[d.rs.state] : "offline";
  const { unread } = d.rs.totals;
  const total = { class: "total pill", "aria-hidden": "true" };
  return [
    h(
      "header",
      { class: "stand" },
      h("h3", { id: `${d.id}-name` }, icon(d.kind), h("span", null, d.kind === "phone" ? "Phone" : "Laptop")),
      h("span", { ...total, "data-total": unread, hidden: !unread }, label(unread, d.cap)),
      h("span", { class: "spoken", role: "status" }, `${d.name}: ${spokenTotal(d)}`),
      toggle("Online", d.online, () => (d.online ? d.disconnect() : d.connect())),
      toggle("Screen", d.awake, () => (d.awake ? d.sleep() : d.wake())),
    ),
    h(
      "div",
      { class: `frame ${d.kind}` },
      h(
        "div",
        { class: "screen", "data-view": d.view.name, onkeydown: (event) => escape(event, d) },
        h("div", { class: "side", key: "side", inert: !d.awake || !!d.why }, side(d, state)),
        h("div", { class: "pane", key: "pane", inert: !d.awake || !!d.why }, PANES[d.view.name](d)),
        d.note && note(d),
        d.why && why(d),
        !d.awake && darkness(d),
      ),
    ),
  ];
}

function escape(event, d) {
  if (event.key !== "Escape") return;
  event.preventDefault();
  d.escape();
}

function toggle(name, on, flip) {
  const props = { class: "switch", key: name, role: "switch", "aria-checked": String(on), onclick: flip };
  return button(props, h("span", { class: "track", "aria-hidden": "true" }), name);
}

function note(d) {
  const dismiss = () => {
    d.note = "";
    d.changed();
  };
  const close = button({ class: "quiet", "aria-label": "Dismiss", onclick: dismiss }, icon("close"));
  return h("div", { class: "note", role: "alert", key: "note" }, h("span", null, d.note), close);
}

function darkness(d) {
  const text = [icon(d.kind), h("span", null, "The screen is off. Tap to wake it.")];
  return button({ class: "darkness", key: "dark", onclick: () => d.wake() }, text);
}

function spokenTotal(d) {
  const { unread, mentions, channels } = d.rs.totals;
  if (!channels) return "nothing unread";
  if (!unread) return `something new in ${plural(channels, "channel")}`;
  const named = mentions ? `, ${plural(mentions, "mention")}` : "";
  return `${label(unread, d.cap)} unread in ${plural(channels, "channel")}${named}`;
}

// ------------------------------------------------------------ the list

function side(d, state) {
  return [
    h(
      "div",
      { class: "app-bar" },
      h("h4", { tabindex: "-1", "data-focus": "chats" }, "Chats"),
      h("span", { class: `state ${state}` }, state),
    ),
    !d.online && h("p", { class: "off", key: "off" }, "Offline: this is what it last knew."),
    badge(d),
    h(
      "ul",
      { class: "chats", "aria-label": "Conversations", onkeydown: roving },
      d.inbox.map((row, place) => conversation(d, row, place)),
    ),
    threadsButton(d),
  ];
}

/** The offline badge counts people, not messages. */
function badge(d) {
  const { senders, label: shown } = d.rs.badge;
  if (!senders) return null;
  return button(
    { class: "badge", key: "badge", "data-senders": senders, onclick: () => d.tap() },
    h("span", { class: "pill" }, shown),
    h("span", null, `${senders === 1 ? "person" : "people"} wrote while you were away`),
  );
}

function conversation(d, row, place) {
  const u = d.unread(row.channel_id);
  const open = d.view.channel === row.channel_id;
  const title = d.session.titleOf(row.channel_id, d.person.id);
  const named = h("span", { class: "name" }, title);
  const first = d.inbox.some((other) => other.channel_id === d.view.channel) ? open : place === 0;
  return h(
    "li",
    { key: row.channel_id },
    button(
      {
        class: `chat${u.has_unread ? " unread" : ""}${u.muted ? " muted" : ""}`,
        "data-rove": true,
        "data-focus": `chat ${row.channel_id}`,
        "data-channel": row.channel_id,
        "data-unread": u.unread,
        tabindex: first ? "0" : "-1",
        "aria-current": open ? "true" : null,
        "aria-label": `${title}, ${spoken(u, row)}`,
        onclick: () => d.open(row.channel_id),
      },
      picture(d, row),
      h("span", { class: "title" }, named, row.pinned && icon("pin"), u.muted && icon("muted")),
      h("span", { class: "when" }, row.last_message ? ago(row.last_message.at) : ""),
      h("span", { class: "preview" }, preview(d, row)),
      h("span", { class: "marks", key: "marks" }, marks(u)),
    ),
  );
}

function preview(d, row) {
  const last = row.last_message;
  if (!last) return "";
  const text = last.preview ?? "";
  if (last.sender_id === d.person.id) return `You: ${text}`;
  return row.type === "direct" ? text : `${d.session.nameOf(last.sender_id)}: ${text}`;
}

function spoken(u, row) {
  const parts = [];
  if (u.label) parts.push(`${u.label} unread`);
  else parts.push(u.has_unread ? "something new" : "nothing unread");
  if (u.mentions) parts.push(plural(u.mentions, "mention"));
  if (u.muted) parts.push("muted");
  if (row.pinned) parts.push("pinned");
  return parts.join(", ");
}

function picture(d, row) {
  if (row.type !== "direct") {
    return h("span", { class: "picture", "aria-hidden": "true" }, icon(row.type === "group" ? "people" : "hash"));
  }
  return avatar(d, row.peer_id ?? d.person.id);
}

function threadsButton(d) {
  const { unread } = d.rs.threadTotals;
  const spokenCount = unread ? `${label(unread, d.cap)} unread` : "nothing unread";
  return button(
    {
      class: "to-threads",
      "data-unread": unread,
      "aria-label": `Threads, ${spokenCount}`,
      "aria-current": d.view.name === "threads" ? "true" : null,
      onclick: () => d.showThreads(),
    },
    icon("thread"),
    h("span", { class: "name" }, "Threads"),
    h("span", { class: "marks" }, unread > 0 && h("span", { class: "pill" }, label(unread, d.cap))),
  );
}
