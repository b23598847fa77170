/**
 * One device of one person: its Readstate client, what is open on it, and what a finger on it can do.
 *
 * It shows what it knows, as a real device would: messages that it was told of, counts that its client keeps,
 * the inbox as it last fetched it. While it is offline, it learns nothing.
 */

import { Readstate } from "./readstate.js";
import { BASE } from "./session.js";

const key = (channel, id) => `${channel}\n${id}`;
const path = (channel) => `/v1/users/me/channels/${encodeURIComponent(channel)}`;

export class Device {
  #render;
  #known = new Set();
  #gone = new Set();
  #fetching = new Map();

  /**
   * @param person who holds it: {id, name, token}
   * @param kind "phone" or "laptop"
   * @param page what all devices share: {session, store, WebSocket(device)}
   * @param render called when it looks different from now on
   */
  constructor(person, kind, page, render) {
    this.person = person;
    this.kind = kind;
    this.name = `${person.name}’s ${kind}`;
    this.id = `${person.name.toLowerCase()}-${kind}`;
    this.session = page.session;
    this.store = page.store;
    this.cap = 99;
    this.online = true;
    this.awake = true;
    this.view = { name: "chats", channel: null, thread: null };
    this.line = null;
    this.menu = null;
    this.why = null;
    this.tapped = null;
    this.note = "";
    this.inbox = [];
    this.preferences = new Map();
    this.seen = null;
    this.follow = "end";
    this.focusOn = null;
    this.#render = render;
    for (const message of page.store.all()) this.#known.add(key(message.channel_id, message.id));
    this.rs = new Readstate({
      url: BASE,
      getToken: async () => person.token,
      device: kind,
      page: null,
      WebSocket: page.WebSocket(this),
    });
    this.#listen();
  }

  #listen() {
    const { rs } = this;
    rs.on("ready", (frame) => (this.cap = frame.display_cap ?? this.cap));
    rs.on("message.new", (frame) => this.#arrived(frame));
    rs.on("channel.updated", (frame) => this.preferences.set(frame.channel_id, frame.preferences));
    rs.on("receipt.updated", (frame) => {
      if (frame.channel_id === this.view.channel) this.#refresh("seen", () => this.#fetchSeen());
    });
    rs.on("error", (error) => this.#failed(error));
    rs.on("change", ({ what }) => {
      if (what === "sync") this.#knowAll();
      this.refreshInbox();
      this.changed();
    });
    rs.on("state", () => {
      if (rs.state === "live") this.#cameBack();
      this.changed();
    });
  }

  /** Look anew when there is time. */
  changed() {
    this.#render(this);
  }

  // ------------------------------------------------------------ what it knows

  /** The messages of a channel that this device was told of, in order. */
  messages(channel) {
    return this.#told(this.store.channel(channel)).slice(-200);
  }

  /** The replies of a thread that this device was told of, in order. */
  replies(channel, root) {
    return this.#told(this.store.thread(channel, root));
  }

  #told(messages) {
    if (this.online) this.#learnDeletes(messages);
    return messages
      .filter((message) => this.#known.has(key(message.channel_id, message.id)))
      .map((message) => ({ ...message, deleted: this.#gone.has(key(message.channel_id, message.id)) }));
  }

  /** A product tells its own devices of deletes; here they look into the store while they are online. */
  #learnDeletes(messages) {
    for (const message of messages) if (message.deleted) this.#gone.add(key(message.channel_id, message.id));
  }

  /** After a full sync a product would load its history again. */
  #knowAll() {
    for (const message of this.store.all()) this.#known.add(key(message.channel_id, message.id));
  }

  #arrived(frame) {
    this.store.addFrame(frame);
    this.#known.add(key(frame.channel_id, frame.message_id));
    const { view } = this;
    const here = frame.channel_id === view.channel;
    const inThread = here && view.thread && frame.thread_id === view.thread;
    if (inThread && this.awake) this.readThread(view.channel, view.thread);
    if (here && frame.sender_id === this.person.id) this.#refresh("seen", () => this.#fetchSeen());
    this.changed();
  }

  /** The figures of a channel as the client keeps them. */
  unread(channel) {
    return this.rs.unread(channel);
  }

  /** Whether what arrives in the open channel is read at once. */
  get looking() {
    return this.awake && this.view.name === "channel";
  }

  // ------------------------------------------------------------ what it asks for

  async #http(method, url, body) {
    if (!this.online) throw new Error("This device is offline.");
    return this.rs.http(method, url, body);
  }

  /** Fetch the list of conversations again; calls that come together share one request. */
  refreshInbox() {
    this.#refresh("inbox", async () => {
      this.inbox = (await this.#http("GET", "/v1/users/me/inbox?limit=50")).conversations;
    });
  }

  async #fetchSeen() {
    const { channel } = this.view;
    const own = this.messages(channel).findLast((message) => message.sender_id === this.person.id && !message.deleted);
    const at = `/v1/channels/${encodeURIComponent(channel)}/messages/${encodeURIComponent(own?.id)}/seen`;
    const seen = own ? await this.#http("GET", at) : null;
    if (this.view.channel === channel) this.seen = seen && { message: own.id, ...seen };
  }

  /** One request of a kind at a time; what is asked meanwhile is asked once more afterwards. */
  #refresh(kind, fetch) {
    if (!this.online) return;
    if (this.#fetching.has(kind)) {
      this.#fetching.set(kind, "again");
      return;
    }
    this.#fetching.set(kind, "once");
    const done = () => {
      const again = this.#fetching.get(kind) === "again";
      this.#fetching.delete(kind);
      if (again) this.#refresh(kind, fetch);
      this.changed();
    };
    // A failure leaves the last answer standing; the next change asks again.
    setTimeout(() => fetch().catch(() => undefined).then(done), 20);
  }

  /** Do something, and say so on the device when it can't be done. */
  async #try(action) {
    this.note = "";
    try {
      return await action();
    } catch (error) {
      this.#failed(error);
      return undefined;
    } finally {
      this.changed();
    }
  }

  #failed(error) {
    if (error?.code === "disconnected") return; // the switch was turned off again meanwhile
    this.note = error?.detail ?? error?.message ?? "Something went wrong.";
    this.changed();
  }

  // ------------------------------------------------------------ the two switches

  connect() {
    this.online = true;
    return this.#try(() => this.rs.connect());
  }

  disconnect() {
    this.online = false;
    this.rs.disconnect();
    this.changed();
  }

  /** A dark screen reads nothing. */
  sleep() {
    this.awake = false;
    this.menu = this.why = null;
    if (this.view.name === "channel") this.#try(() => this.rs.blur());
    this.changed();
  }

  wake() {
    this.awake = true;
    if (this.view.name === "channel") this.open(this.view.channel);
    if (this.view.name === "thread") this.readThread(this.view.channel, this.view.thread);
    this.changed();
  }

  #cameBack() {
    this.refreshInbox();
    if (this.view.name === "channel") this.#refresh("seen", () => this.#fetchSeen());
  }

  // ------------------------------------------------------------ going places

  /** Open a channel: it is read, and a line stands where the unread began. */
  async open(channel) {
    const again = this.view.name === "channel" && this.view.channel === channel;
    this.#go("channel", channel);
    this.line = this.unread(channel).first_unread?.seq ?? (again ? this.line : null);
    this.follow = this.line === null ? "end" : "line";
    this.#refresh("seen", () => this.#fetchSeen());
    this.#refresh("preferences", async () => {
      this.preferences.set(channel, await this.#http("GET", `${path(channel)}/preferences`));
    });
    await this.#try(async () => {
      const before = await this.rs.focus(channel);
      if (this.view.channel !== channel || !before?.first_unread) return;
      this.line = before.first_unread.seq;
      this.follow = "line";
    });
  }

  async openThread(channel, thread) {
    this.#leave();
    this.#go("thread", channel, thread);
    this.follow = "end";
    await this.readThread(channel, thread);
  }

  showThreads() {
    this.#leave();
    this.#go("threads");
  }

  back() {
    this.#leave();
    this.#go("chats");
  }

  #leave() {
    if (this.view.name === "channel") this.rs.blur().catch(() => undefined);
  }

  #go(name, channel = null, thread = null) {
    this.focusOn = name === "chats" ? `chat ${this.view.channel}` : name;
    this.view = { name, channel, thread };
    this.menu = this.why = null;
    this.seen = null;
    this.note = "";
    this.changed();
  }

  // ------------------------------------------------------------ doing things

  /** Say something in the open channel, or in the open thread. */
  send(text) {
    const { channel, thread } = this.view;
    return this.#try(async () => {
      const message = { channel_id: channel, sender_id: this.person.id, text };
      const more = { mentions: this.session.mentionsIn(text), ...(thread ? { thread_id: thread } : {}) };
      const { results } = await this.#http("POST", "/v1/messages", { ...message, ...more });
      const [{ id, seq, thread_seq }] = results;
      this.store.add({ ...message, ...more, id, seq, thread_seq, at: Date.now() });
      this.#known.add(key(channel, id));
      this.line = null;
      this.follow = "end";
      this.#refresh("seen", () => this.#fetchSeen());
    });
  }

  markUnread(message) {
    this.#closeMenu(message);
    return this.#try(async () => {
      await this.rs.markUnread(message.channel_id, message.id);
      this.line = message.seq;
    });
  }

  remove(message) {
    this.#closeMenu(message);
    return this.#try(async () => {
      const place = `/v1/channels/${encodeURIComponent(message.channel_id)}`;
      await this.#http("DELETE", `${place}/messages/${encodeURIComponent(message.id)}`);
      this.store.remove(message.channel_id, message.id);
    });
  }

  readThread(channel, thread) {
    const followed = [...this.rs.threads.values()].some((t) => t.channel_id === channel && t.thread_id === thread);
    return followed ? this.#try(() => this.rs.markThreadRead(channel, thread)) : undefined;
  }

  /** Mute, pin, or count less. */
  prefer(channel, wanted) {
    return this.#try(async () => {
      this.preferences.set(channel, await this.#http("PUT", `${path(channel)}/preferences`, wanted));
      this.refreshInbox();
    });
  }

  /** Look at who wrote while every device was away. */
  tap() {
    return this.#try(async () => {
      const tapped = await this.rs.tap();
      this.#leave();
      this.#go("away");
      this.tapped = tapped;
    });
  }

  explain(channel) {
    return this.#try(async () => {
      this.why = await this.#http("GET", `${path(channel)}/explain`);
      this.focusOn = "why";
    });
  }

  closeWhy() {
    this.why = null;
    this.focusOn = "why-button";
    this.changed();
  }

  toggleMenu(id) {
    this.menu = this.menu === id ? null : id;
    this.focusOn = this.menu === null ? `menu-button ${id}` : "menu";
    this.changed();
  }

  #closeMenu(message) {
    this.menu = null;
    this.focusOn = `menu-button ${message.id}`;
  }

  /** Esc: one step out of wherever one is. */
  escape() {
    if (this.why) this.closeWhy();
    else if (this.menu) this.toggleMenu(this.menu);
    else if (this.view.name !== "chats") this.back();
  }
}
