/** What is not a conversation: followed threads, who wrote meanwhile, and why a number is what it is. */

import { button, h } from "./dom.js";
import { icon } from "./icons.js";
import { avatar, head } from "./parts.js";
import { ago, plural } from "./session.js";

// ------------------------------------------------------------ threads

export function threads(d) {
  const followed = [...d.rs.threads.values()].sort((a, b) => (b.latest?.at ?? 0) - (a.latest?.at ?? 0));
  return [
    head(d, "Threads", "threads"),
    h(
      "ul",
      { class: "panel", "aria-label": "Followed threads" },
      followed.map((thread) => followedThread(d, thread)),
      !followed.length && h("li", { class: "nothing" }, "Threads that you follow appear here."),
    ),
  ];
}

function followedThread(d, thread) {
  const { channel_id: channel, thread_id: id, latest } = thread;
  const root = d.store.get(channel, id);
  return h(
    "li",
    { class: "card", key: `${channel} ${id}`, "data-thread": id, "data-unread": thread.unread },
    h("p", { class: "where" }, icon("thread"), d.session.titleOf(channel, d.person.id)),
    h("p", { class: "root" }, root?.deleted ? "deleted" : (root?.text ?? id)),
    latest && h("p", { class: "latest" }, latestWords(d, latest)),
    h(
      "p",
      { class: "actions" },
      button({ class: "small", onclick: () => d.openThread(channel, id) }, "Open"),
      thread.unread > 0 && button({ class: "small", onclick: () => d.readThread(channel, id) }, "Mark thread read"),
      thread.unread > 0 && h("span", { class: "pill", "aria-label": `${thread.label} unread` }, thread.label),
    ),
  );
}

function latestWords(d, { sender_id: sender, preview, at }) {
  return `${d.session.nameOf(sender)}: ${preview ?? ""} · ${ago(at)}`;
}

// ------------------------------------------------------------ who wrote meanwhile

export function away(d) {
  const groups = d.tapped?.by_sender ?? [];
  return [
    head(d, "While you were away", "away"),
    h(
      "ul",
      { class: "panel", "aria-label": "Who wrote" },
      groups.map((group) => fromSender(d, group)),
      !groups.length && h("li", { class: "nothing" }, "Nobody wrote."),
    ),
  ];
}

function fromSender(d, { sender_id: sender, messages }) {
  const count = plural(messages.length, "message");
  return h(
    "li",
    { class: "card", key: sender, "data-sender": sender },
    h("p", { class: "where" }, avatar(d, sender), d.session.nameOf(sender), " ", h("span", { class: "soft" }, count)),
    messages.map((message) =>
      button(
        { class: "said", key: `${message.channel_id} ${message.id}`, onclick: () => visit(d, message) },
        h("span", { class: "soft" }, d.session.titleOf(message.channel_id, d.person.id)),
        h("span", null, message.deleted ? "deleted" : (message.text ?? message.preview ?? "")),
      ),
    ),
  );
}

function visit(d, message) {
  if (message.seq === null) d.openThread(message.channel_id, message.thread_id);
  else d.open(message.channel_id);
}

// ------------------------------------------------------------ why this number

const LEFT_OUT = [
  ["own", "your own"],
  ["deleted", "deleted"],
  ["silent", "silent"],
  ["read_apart", "read one by one"],
];

/** The sum behind a count, from the pointer on, with the database's own count beside it. */
export function why(d) {
  const w = d.why;
  const title = d.session.titleOf(w.channel_id, d.person.id);
  const count = d.preferences.get(w.channel_id)?.count ?? "all";
  const named = { role: "dialog", "aria-label": `Why this number: ${title}`, "data-focus": "why", tabindex: "-1" };
  return h(
    "div",
    { class: "sheet", key: "why", ...named },
    h(
      "div",
      { class: "app-bar" },
      h("h4", null, "Why this number?"),
      button({ class: "quiet", "aria-label": "Close", onclick: () => d.closeWhy() }, icon("close")),
    ),
    h("p", { class: "soft" }, pointerWords(w)),
    h(
      "dl",
      { class: "sum" },
      term("messages after it", w.after_pointer),
      LEFT_OUT.map(([name, words]) => term(words, w.minus[name], "−")),
      term("unread", w.unread, "=", "result"),
    ),
    count !== "all" && h("p", { class: "soft" }, preferenceWords(count, d.unread(w.channel_id))),
    h(
      "p",
      { class: w.agrees ? "agrees" : "differs" },
      w.agrees && icon("check"),
      w.agrees ? `The database counts the same: ${w.durable}.` : `The database counts ${w.durable}.`,
    ),
    h("p", { class: "soft" }, sourceWords(w)),
  );
}

function pointerWords({ pointer, latest_seq: latest }) {
  const first = `before the first of ${plural(latest, "message")}`;
  const place = pointer.seq ? `at message ${pointer.seq} of ${latest}` : first;
  return `The read pointer stands ${place}.${pointer.epoch ? " A mark-unread has moved it back before." : ""}`;
}

function sourceWords({ mode, answered_by: by, exact }) {
  const source = by === "hot" ? "hot state" : "database";
  return `Counted by ${mode}, answered from the ${source}, ${exact ? "exact" : "a lower bound"}.`;
}

function preferenceWords(count, u) {
  const what = count === "none" ? "nothing" : "mentions only";
  return `This conversation counts ${what}, so ${u.unread} is shown${u.has_unread ? ", and a dot" : ""}.`;
}

function term(words, value, sign = "", kind = "") {
  return h(
    "div",
    { class: `term ${kind}${sign === "−" && !value ? " none" : ""}`, key: words },
    h("dt", null, words),
    h("dd", null, sign && h("span", { class: "sign" }, sign), String(value)),
  );
}
