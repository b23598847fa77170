/** Everybody else: they have no device on the page, they only write. */

import { Readstate } from "./readstate.js";
import { BASE } from "./session.js";

const PHRASES = [
  "Have you seen this?",
  "Quick question when you have a minute.",
  "The numbers look good today.",
  "I will be ten minutes late.",
  "Done! Next one, please.",
  "Somebody left an umbrella here.",
  "The coffee machine works again.",
  "Could you check the last page?",
];

export class Writers {
  #session;
  #store;
  #clients;
  #said = 0;
  #start = Date.now().toString(36);

  constructor(session, store) {
    this.#session = session;
    this.#store = store;
    this.#clients = new Map(session.people.map((person) => [person.id, clientOf(person)]));
  }

  /** Who has no device here. */
  get people() {
    return this.#session.people.filter((person) => !["Alice", "Bob"].includes(person.name));
  }

  /** Write as somebody; `times` messages in one request. */
  async write(sender, channel, { text = "", times = 1, mention = "", silent = false, thread = "" } = {}) {
    const messages = Array.from({ length: times }, () => this.#message(sender, channel, text, mention, silent, thread));
    // The product's own store has them before anybody is told.
    for (const message of messages) this.#store.add({ ...message, at: Date.now() });
    const { results } = await this.#clients.get(sender).http("POST", "/v1/messages", { messages });
    const refused = results.find((result) => result.status === "rejected");
    if (refused) throw new Error(refused.detail);
    for (const { id, seq, thread_seq } of results) this.#store.add({ channel_id: channel, id, seq, thread_seq });
  }

  #message(sender, channel, text, mention, silent, thread) {
    const words = text || PHRASES[this.#said % PHRASES.length];
    const called = mention === "@channel" ? "@channel " : mention ? `@${this.#session.nameOf(mention)} ` : "";
    return {
      id: `said-${this.#start}-${++this.#said}`,
      channel_id: channel,
      sender_id: sender,
      text: called + words,
      silent,
      mentions: mention ? [mention] : [],
      ...(thread ? { thread_id: thread } : {}),
    };
  }
}

function clientOf(person) {
  return new Readstate({ url: BASE, getToken: async () => person.token, device: "pen", page: null });
}

/** Wire the form up: who, where, under which message, to whom, how often. */
export function writingForm(form, session, store, writers, say) {
  const { who, where, under, mention, text, silent } = form.elements;
  fill(who, writers.people.map((person) => [person.id, person.name]));
  const offerRooms = () => {
    const rooms = session.channels.filter((channel) => channel.members.includes(who.value));
    fill(where, rooms.map((channel) => [channel.id, session.publicTitleOf(channel.id)]));
    offerRoots();
  };
  const offerRoots = () => {
    const roots = rootsOf(store, where.value).map((root) => [root.id, `under “${cut(root.text)}”`]);
    fill(under, [["", "as a new message"], ...roots]);
    const { members } = session.channel(where.value);
    const there = session.people.slice(0, 2).filter((person) => members.includes(person.id));
    fill(mention, [["", "nobody"], ...there.map((person) => [person.id, person.name]), ["@channel", "everybody"]]);
  };
  who.onchange = offerRooms;
  where.onchange = offerRoots;
  under.onfocus = offerRoots;
  form.onsubmit = async (event) => {
    event.preventDefault();
    const times = Number(event.submitter?.value || 1);
    const how = { text: text.value.trim(), times, mention: mention.value, silent: silent.checked, thread: under.value };
    try {
      await writers.write(who.value, where.value, how);
      const what = times === 1 ? "a message" : `${times} messages`;
      say(`${session.nameOf(who.value)} wrote ${what} in ${session.publicTitleOf(where.value)}.`);
      text.value = "";
    } catch (error) {
      say(error.detail ?? error.message);
    }
  };
  offerRooms();
}

/** Messages that a reply can hang on: those that have replies, and the newest few. */
function rootsOf(store, channel) {
  const roots = store.channel(channel).filter((message) => !message.thread_id && !message.deleted);
  const withReplies = roots.filter((root) => store.thread(channel, root.id).length);
  return [...new Set([...withReplies, ...roots.slice(-3)])];
}

function cut(text) {
  return text.length > 32 ? `${text.slice(0, 31)}…` : text;
}

function fill(select, options) {
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}
