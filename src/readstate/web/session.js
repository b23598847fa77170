/** The sandbox of this page: made-up people with tokens, and the words by which the page calls things. */

const TRIES = 5;

/** Where the service is: this page stands right under it. */
export const BASE = new URL(".", location.href).href.replace(/\/$/, "");

/** Ask for a sandbox; wait as long as the service says when others were faster. */
export async function startSession() {
  for (let tries = 1; ; tries++) {
    const answer = await fetch(`${BASE}/demo/session`, { method: "POST" });
    if (answer.ok) return new Session(await answer.json());
    const wait = Number(answer.headers.get("Retry-After"));
    if (answer.status !== 429 || tries === TRIES || wait > 10) throw new Error(await reason(answer));
    await new Promise((done) => setTimeout(done, wait * 1000 + Math.random() * 500));
  }
}

async function reason(answer) {
  if (answer.status === 429) return "This service has made enough sandboxes for today.";
  const problem = await answer.json().catch(() => null);
  return problem?.detail ?? `The service answered ${answer.status}.`;
}

export class Session {
  #byId;
  #channelsById;

  constructor({ people, channels, messages }) {
    this.people = people;
    this.channels = channels;
    this.messages = messages;
    this.#byId = new Map(people.map((person, place) => [person.id, { ...person, place }]));
    this.#channelsById = new Map(channels.map((channel) => [channel.id, channel]));
  }

  /** The person with this first name. */
  person(name) {
    return this.people.find((person) => person.name === name);
  }

  /** What a person is called; ids that the page doesn't know stand for themselves. */
  nameOf(id) {
    return this.#byId.get(id)?.name ?? id;
  }

  /** A number from 0 to 5 that gives a person a colour. */
  hueOf(id) {
    return this.#byId.get(id)?.place ?? 0;
  }

  channel(id) {
    return this.#channelsById.get(id);
  }

  /** What `user` calls a channel: a direct one has the name of the other person. */
  titleOf(id, user) {
    const channel = this.channel(id);
    if (!channel) return id;
    if (channel.type !== "direct") return channel.name ?? id;
    return this.nameOf(channel.members.find((member) => member !== user) ?? user);
  }

  /** What stands for a direct channel where nobody's view is taken. */
  publicTitleOf(id) {
    const channel = this.channel(id);
    if (channel.type !== "direct") return channel.name;
    return channel.members.map((member) => this.nameOf(member)).join(" and ");
  }

  /** Whom a text names with an @. */
  mentionsIn(text) {
    const found = this.people.filter((person) => new RegExp(`@${person.name}\\b`, "i").test(text));
    const everyone = /@channel\b/i.test(text) ? ["@channel"] : [];
    return [...found.map((person) => person.id), ...everyone];
  }
}

/** How long ago something was. */
export function ago(at, now = Date.now()) {
  const minutes = Math.max(0, Math.floor((now - at) / 60_000));
  if (minutes < 1) return "now";
  if (minutes < 60) return `${minutes} min`;
  return minutes < 1440 ? `${Math.floor(minutes / 60)} h` : `${Math.floor(minutes / 1440)} d`;
}

/** A number as a badge shows it. */
export function label(count, cap = 99) {
  if (!count) return "";
  return count > cap ? `${cap}+` : String(count);
}

/** "1 message", "2 messages". */
export function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}
