/** An open channel and an open thread: messages, the red line, menus, receipts, and a place to write. */

import { button, h, roving } from "./dom.js";
import { icon } from "./icons.js";
import { avatar, head } from "./parts.js";
import { ago, label, plural } from "./session.js";

const COUNTS = { all: "Count all", mentions: "Count mentions", none: "Count nothing" };

/** What a wide device shows while nothing is open. */
export function empty() {
  return [h("p", { class: "nothing", key: "nothing" }, icon("thread"), h("span", null, "Open a conversation."))];
}

// ------------------------------------------------------------ a channel

export function channel(d) {
  const id = d.view.channel;
  const messages = d.messages(id);
  return [
    head(d, d.session.titleOf(id, d.person.id), "channel"),
    tools(d, id),
    leftUnread(d, id),
    h(
      "ol",
      { class: "messages", key: `messages ${id}`, "aria-label": "Messages", "data-scroll": id, onkeydown: roving },
      messages.flatMap((message, place) => [
        message.seq === lineAt(d, messages) && line(),
        bubble(d, message, place === messages.length - 1),
        d.seen?.message === message.id && seenBy(d),
      ]),
    ),
    composer(d, `Message ${d.session.titleOf(id, d.person.id)}`),
  ];
}

function tools(d, id) {
  const row = d.inbox.find((conversation) => conversation.channel_id === id);
  const muted = d.unread(id).muted;
  const wanted = d.preferences.get(id);
  return h(
    "div",
    { class: "tools", key: "tools", role: "group", "aria-label": "Of this conversation" },
    tool("Mute", muted ? "muted" : "bell", muted, () => d.prefer(id, { muted: !muted })),
    tool("Pin", "pin", !!row?.pinned, () => d.prefer(id, { pinned: !row?.pinned })),
    h(
      "select",
      {
        "aria-label": "What counts as unread",
        value: wanted?.count ?? "all",
        onchange: (event) => d.prefer(id, { count: event.target.value }),
      },
      Object.entries(COUNTS).map(([value, text]) => h("option", { value, key: value }, text)),
    ),
    button(
      { class: "quiet", "data-focus": "why-button", "aria-label": "Why this number?", onclick: () => d.explain(id) },
      icon("why"),
      h("span", { class: "wide" }, "Why this number?"),
    ),
  );
}

function tool(name, drawing, on, flip) {
  const props = { class: "quiet", key: name, "aria-pressed": String(on), "aria-label": name, onclick: flip };
  return button(props, icon(drawing));
}

/** The channel is on the screen and yet unread: somebody marked it so. */
function leftUnread(d, id) {
  const { unread } = d.unread(id);
  if (!unread || !d.awake) return null;
  return h(
    "div",
    { class: "left", key: "left" },
    h("span", null, `${label(unread, d.cap)} left unread`),
    button({ class: "small", onclick: () => d.open(id) }, "Mark read"),
  );
}

/** The place of the red line: the first message at or after it that this device has. */
function lineAt(d, messages) {
  return d.line === null ? null : messages.find((message) => message.seq >= d.line)?.seq;
}

function line() {
  const props = { class: "line", key: "line", role: "separator", "aria-label": "New messages" };
  return h("li", props, h("span", null, "New"));
}

// ------------------------------------------------------------ a message

function bubble(d, message, last) {
  const own = message.sender_id === d.person.id;
  const open = d.menu === message.id;
  return h(
    "li",
    { class: `message${own ? " own" : ""}`, key: message.id, "data-message": message.id },
    !own && avatar(d, message.sender_id),
    h(
      "div",
      { class: "bubble" },
      h("span", { class: "who" }, own ? "You" : d.session.nameOf(message.sender_id)),
      h("span", { class: "when" }, message.silent && icon("muted"), message.at ? ago(message.at) : ""),
      message.deleted ? h("p", { class: "deleted" }, "deleted") : h("p", null, words(d, message.text)),
      repliesButton(d, message),
    ),
    !message.deleted && menuButton(d, message, open, last),
    open && menu(d, message, own),
  );
}

/** The text, with the names that it calls standing out. */
function words(d, text) {
  const names = d.session.people.map((person) => person.name).join("|");
  const parts = (text ?? "").split(new RegExp(`(@(?:${names}|channel)\\b)`, "i"));
  return parts.map((part, place) => (place % 2 ? h("b", { class: "named" }, part) : part));
}

function repliesButton(d, message) {
  const count = d.replies(message.channel_id, message.id).length;
  if (!count) return null;
  const open = () => d.openThread(message.channel_id, message.id);
  return button({ class: "replies", onclick: open }, icon("thread"), plural(count, "reply", "replies"));
}

function menuButton(d, message, open, last) {
  return button(
    {
      class: "quiet more",
      "data-rove": true,
      "data-focus": `menu-button ${message.id}`,
      tabindex: open || last ? "0" : "-1",
      "aria-haspopup": "menu",
      "aria-expanded": String(open),
      "aria-label": `Message of ${d.session.nameOf(message.sender_id)}: what to do with it`,
      onclick: () => d.toggleMenu(message.id),
    },
    icon("more"),
  );
}

function menu(d, message, own) {
  const close = () => d.toggleMenu(message.id);
  const item = (text, action) => button({ role: "menuitem", "data-rove": true, onclick: action }, text);
  const leaves = (event) => {
    event.stopPropagation();
    if (event.key === "Escape" || event.key === "Tab") close();
    if (event.key === "Escape") event.preventDefault();
    else roving(event);
  };
  const { channel_id: where, id, thread_id: root } = message;
  return h(
    "div",
    { class: "menu", role: "menu", "data-focus": "menu", tabindex: "-1", onkeydown: leaves },
    message.seq !== null && item("Mark unread from here", () => d.markUnread(message)),
    d.view.name === "channel" && item("Reply in thread", () => d.openThread(where, root ?? id)),
    own && item("Delete", () => d.remove(message)),
  );
}

/** Under the newest own message: who has seen it, as far as they let it be known. */
function seenBy(d) {
  const { count, of, users } = d.seen;
  const names = users?.map((reader) => d.session.nameOf(reader.user_id)) ?? [];
  const who = names.length === count && count <= 3 ? names.join(", ") : `${count} of ${of}`;
  const text = count ? `Seen by ${who}` : "Not seen yet";
  return h("li", { class: "seen", key: "seen" }, count > 0 && icon("check"), h("span", null, text));
}

// ------------------------------------------------------------ a thread

export function thread(d) {
  const { channel: id, thread: root } = d.view;
  const first = d.store.get(id, root);
  const replies = d.replies(id, root);
  return [
    head(d, "Thread", "thread"),
    h(
      "ol",
      { class: "messages", key: `thread ${root}`, "aria-label": "Thread", "data-scroll": root, onkeydown: roving },
      first && bubble(d, first, !replies.length),
      h("li", { class: "divider", key: "divider" }, plural(replies.length, "reply", "replies")),
      replies.map((message, place) => bubble(d, message, place === replies.length - 1)),
    ),
    composer(d, "Reply in thread"),
  ];
}

// ------------------------------------------------------------ writing

function composer(d, hint) {
  const submit = (event) => {
    event.preventDefault();
    const input = event.target.elements.text;
    const text = input.value.trim();
    if (!text) return;
    input.value = "";
    d.send(text);
  };
  return h(
    "form",
    { class: "composer", key: `composer ${d.view.channel} ${d.view.thread}`, onsubmit: submit },
    h("input", {
      name: "text",
      autocomplete: "off",
      maxlength: "500",
      placeholder: d.online ? hint : "Offline",
      "aria-label": hint,
      disabled: !d.online,
    }),
    h("button", { class: "send", "aria-label": "Send", disabled: !d.online }, icon("send")),
  );
}
