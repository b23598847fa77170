/**
 * The browser client of Readstate: unread counts, threads and the badge of one user, kept live.
 *
 * It starts from a bulk sync over HTTP and goes on over a WebSocket from exactly that moment, so nothing is
 * missed between the two. When the connection breaks, it comes back with the cursor of the last event it got.
 */

import { Connection, deferred, Listeners, Outbox, Timers } from "./readstate-connection.js";
import { Counts, nothing, threadKey } from "./readstate-counts.js";
import { Http, ReadstateError } from "./readstate-http.js";

export { ReadstateError };

const BACKOFF_FROM = 500;
const BACKOFF_TO = 30_000;
/** A connection that held this long was a good one: the next loss starts with short waits again. */
const STEADY = 10_000;
const RESTARTED_WITHIN = 2_000;
/** Who is over the rate waits this long at least. */
const SLOW_DOWN = 2_000;
const RENEW_AGAIN = 5_000;
const RENEW_AHEAD = 60_000;
const LONGEST_TIMER = 2 ** 31 - 1;

const TOO_LARGE = 1009;
const RESTARTING = 1012;
const UNAUTHENTICATED = 4401;
const EXPIRED = 4403;
const TOO_SLOW = 4408;
const TOO_MANY_DEVICES = 4409;
const TOO_MANY_FRAMES = 4429;

export class Readstate {
  /** @type {"idle" | "connecting" | "live" | "offline" | "closed"} */
  state = "idle";
  /** @type {string | null} */
  user = null;

  #options;
  #timers;
  #http;
  #counts = new Counts((what, channelId) => this.#changed(what, channelId));
  /** A request over the rate goes again over the next connection, and all that were sent after it, in their order. */
  #outbox = new Outbox(() => this.#lost(TOO_MANY_FRAMES));
  #listeners = new Listeners();

  #connection = null;
  #cursor = null;
  /** Raised whenever what is under way is void. */
  #run = 0;
  #waiter = null;
  #beenLive = false;
  #liveSince = 0;
  #attempts = 0;
  #refusals = 0;
  #ended = false;
  #cancelRetry = null;
  #cancelRenew = null;
  /** How far the service's clock is ahead of this one. */
  #skew = 0;
  /** The channel that the user has open: {channelId, read}. */
  #focus = null;

  /** @param {import("./readstate.d.ts").Options} options */
  constructor(options) {
    this.#options = {
      url: globalThis.location?.origin,
      device: "web",
      page: globalThis.document ?? null,
      WebSocket: globalThis.WebSocket,
      fetch: (...args) => globalThis.fetch(...args),
      random: Math.random,
      setTimeout: (run, milliseconds) => globalThis.setTimeout(run, milliseconds),
      clearTimeout: (handle) => globalThis.clearTimeout(handle),
      ...options,
    };
    const { url, getToken, WebSocket, fetch, setTimeout, clearTimeout, page } = this.#options;
    if (!url) throw new TypeError("url is missing: where does the service listen?");
    if (typeof getToken !== "function") throw new TypeError("getToken is missing: it gives the user's token");
    if (!WebSocket) throw new TypeError("there is no WebSocket here: give one as an option");
    this.#options.url = String(url).replace(/\/+$/, "");
    this.#timers = new Timers(setTimeout, clearTimeout);
    this.#http = new Http({ url: this.#options.url, getToken, fetch, timers: this.#timers });
    page?.addEventListener("visibilitychange", this.#seen);
    globalThis.addEventListener?.("online", this.#online);
  }

  // ---------------------------------------------------------------- what is known

  get channels() {
    return this.#counts.channels;
  }

  get totals() {
    return this.#counts.totals;
  }

  get threads() {
    return this.#counts.threads;
  }

  get threadTotals() {
    return this.#counts.threadTotals;
  }

  get badge() {
    return this.#counts.badge;
  }

  /** What is unread in a channel; all zero where nothing is known. */
  unread(channelId) {
    return this.channels.get(channelId) ?? nothing(channelId);
  }

  /** A followed thread. */
  thread(channelId, threadId) {
    return this.threads.get(threadKey(channelId, threadId));
  }

  /** Listen to frames by their type, to "change", "state", "focus", "error", or to all frames as "*". */
  on(type, listener) {
    return this.#listeners.add(type, listener);
  }

  // ---------------------------------------------------------------- coming and going

  /** Sync and connect, or come back. Resolves when everything is here and live. */
  connect() {
    if (this.#ended) return Promise.reject(closed());
    if (this.state === "live") return Promise.resolve();
    this.#waiter ??= deferred();
    if (this.state !== "connecting") this.#open();
    return this.#waiter.promise;
  }

  /** Go offline. What is known stays, and connect() goes on from there. */
  disconnect() {
    if (this.#ended || this.state === "idle") return;
    this.#leave();
    this.#settle(new ReadstateError({ code: "disconnected", detail: "disconnect() was called." }));
    this.#become("offline"); // last: a listener may call connect(), which is a new wait
  }

  /** End for good. */
  close() {
    if (this.#ended) return;
    this.#ended = true;
    this.#leave();
    this.#timers.clear();
    this.#options.page?.removeEventListener("visibilitychange", this.#seen);
    globalThis.removeEventListener?.("online", this.#online);
    this.#become("closed");
    this.#settle(closed());
    this.#outbox.fail(closed(), { waiting: true });
  }

  async #open() {
    const run = ++this.#run;
    this.#cancelRetry?.();
    this.#become("connecting");
    try {
      const token = await this.#http.renew();
      if (run !== this.#run) return;
      if (this.#cursor === null) {
        const { sync, channels, threads } = await this.#http.everything();
        if (run !== this.#run) return;
        this.#counts.reset(channels, threads);
        this.#cursor = sync;
      }
      const hello = { token, device: this.#options.device, resume: this.#cursor };
      const { url, WebSocket } = this.#options;
      this.#connection = new Connection(
        { url: `${url.replace(/^http/, "ws")}/v1/ws`, hello, WebSocket, timers: this.#timers },
        { frame: (frame) => this.#frame(frame), closed: (code) => this.#lost(code) },
      );
    } catch (error) {
      if (run === this.#run) this.#failed(error);
    }
  }

  #live() {
    this.#beenLive = true;
    this.#liveSince = Date.now();
    this.#refusals = 0;
    this.#become("live");
    if (this.state !== "live") return; // a listener went offline
    const opening = ({ type }) => type === "channel.focus";
    if (this.#focus && !this.#hidden && !this.#outbox.holds(opening)) this.#focusAgain(true);
    this.#outbox.attach(this.#connection);
    this.#settle();
  }

  /** The connection is gone, and nobody here wanted that. */
  #lost(code) {
    const wasLive = this.state === "live";
    if (code === TOO_LARGE) this.#outbox.fail(new ReadstateError({ code: "too_large", detail: "Too large a frame." }));
    this.#leave();
    if (wasLive && Date.now() - this.#liveSince >= STEADY) this.#attempts = 0;
    if (code === TOO_SLOW) this.#cursor = null;
    if (code === UNAUTHENTICATED || code === EXPIRED) {
      const detail = "The service does not accept the token.";
      return this.#refused(new ReadstateError({ code: "unauthenticated", detail, status: 401 }));
    }
    if (code === RESTARTING) return this.#comeBack(this.#options.random() * RESTARTED_WITHIN);
    this.#comeBack((code === TOO_MANY_FRAMES || code === TOO_MANY_DEVICES ? SLOW_DOWN : 0) + this.#backoff());
  }

  #failed(error) {
    if (error.status === 401) return this.#refused(error);
    if (this.#beenLive) {
      this.#listeners.emit("error", error);
      return this.#comeBack(this.#backoff());
    }
    this.#become("idle");
    this.#settle(error);
  }

  /** A token may have run out: the next one gets one chance. The very first had it already. */
  #refused(error) {
    this.#refusals += 1;
    if (this.#beenLive && this.#refusals < 2) return this.#comeBack(0);
    this.#become("closed");
    this.#outbox.fail(error, { waiting: true });
    this.#listeners.emit("error", error);
    this.#settle(error);
  }

  #comeBack(wait) {
    this.#cancelRetry = this.#timers.after(wait, () => this.#open());
    this.#become("offline");
  }

  /** Full jitter: a thousand clients that lost the same service do not come back together. */
  #backoff() {
    const longest = Math.min(BACKOFF_TO, BACKOFF_FROM * 2 ** this.#attempts);
    this.#attempts += 1;
    return this.#options.random() * longest;
  }

  #leave() {
    this.#run += 1;
    this.#cancelRetry?.();
    this.#cancelRenew?.();
    this.#outbox.detach();
    this.#connection?.leave();
    this.#connection = null;
  }

  #settle(error) {
    const waiter = this.#waiter;
    this.#waiter = null;
    if (error) waiter?.reject(error);
    else waiter?.resolve();
  }

  #become(state) {
    if (this.state === state) return;
    this.state = state;
    this.#listeners.emit("state", state);
    this.#changed("state");
  }

  #online = () => {
    if (this.state === "offline" && this.#cancelRetry?.()) this.#open();
  };

  // ---------------------------------------------------------------- frames

  #frame(frame) {
    if (frame.type === "ready") this.#ready(frame);
    const news = this.#counts.apply(frame);
    if (frame.resume) this.#cursor = frame.resume;
    if (frame.type === "channel.removed" && this.#focus?.channelId === frame.channel_id) this.#focus = null;
    this.#listeners.emit("*", frame);
    if (frame.type === "error" && !frame.ref) this.#listeners.emit("error", new ReadstateError(frame));
    else if (frame.type !== "error" && news) this.#listeners.emit(frame.type, frame);
    if (frame.type === "badge.updated" && this.state === "connecting") this.#live();
    if (frame.type === "sync.required") this.#syncAnew();
  }

  #ready({ user_id, display_cap, server_time, expires_at }) {
    this.user = user_id;
    this.#counts.cap = display_cap ?? this.#counts.cap;
    this.#skew = server_time - Date.now();
    this.#renewBefore(expires_at);
  }

  #syncAnew() {
    const wait = this.#attempts === 0 ? 0 : this.#backoff();
    this.#attempts ||= 1;
    this.#leave();
    this.#cursor = null;
    this.#comeBack(wait);
  }

  #renewBefore(expiresAt) {
    this.#cancelRenew?.();
    if (!expiresAt) return;
    const left = expiresAt - Date.now() - this.#skew;
    const wait = Math.max(1_000, left - Math.min(RENEW_AHEAD, left * 0.3));
    this.#cancelRenew = this.#timers.after(Math.min(wait, LONGEST_TIMER), () => this.#renew());
  }

  async #renew() {
    const connection = this.#connection;
    const again = (error) => {
      if (connection !== this.#connection) return;
      this.#listeners.emit("error", error);
      this.#cancelRenew = this.#timers.after(RENEW_AGAIN, () => this.#renew());
    };
    try {
      const token = await this.#http.renew();
      if (connection === null || connection !== this.#connection) return;
      connection.request({ type: "auth", token }, (answer) => {
        if (answer.type === "error") again(new ReadstateError(answer));
        else this.#renewBefore(answer.expires_at);
      });
    } catch (error) {
      again(error);
    }
  }

  #changed(what, channelId) {
    this.#listeners.emit("change", channelId === undefined ? { what } : { what, channel_id: channelId });
  }

  /** Resolves when everything that the service announced before this call is in what is known here. */
  async settled() {
    await this.#request({ type: "ping" });
  }

  // ---------------------------------------------------------------- what users do

  /** Open a channel. Resolves to its `U` as it stood before: the red line goes to its `first_unread`. */
  focus(channelId, { read = true } = {}) {
    const focus = this.#lookAt({ channelId, read });
    return this.#hidden ? this.#peek(channelId) : this.#sendFocus(focus);
  }

  /** The open channel is left. */
  async blur() {
    const focus = this.#focus;
    this.#lookAt(null);
    if (focus && !this.#hidden) await this.#sendBlur(focus.channelId);
  }

  /** Mark read: everything, up to a message, a seq or a time, or exactly these messages. */
  markRead(channelId, { upTo, upToSeq, upToTime, messages } = {}) {
    const target = { up_to: upTo, up_to_seq: upToSeq, up_to_time: upToTime, messages };
    const everything = Object.values(target).every((value) => value === undefined || value === null);
    if (everything) return this.#beenLive ? this.#readAll(channelId) : this.#readAllThere(channelId);
    return this.#read({ channel_id: channelId, ...target, epoch: this.#epoch(channelId) });
  }

  /** Mark a message and all later ones unread. */
  markUnread(channelId, fromMessageId) {
    if (this.#focus?.channelId === channelId) this.#lookAt(null); // it ends, and coming back must not read again
    const frame = { type: "mark_unread", channel_id: channelId, from: fromMessageId };
    const once = { ...frame, epoch: this.#epoch(channelId) }; // done already, or overtaken: it changes nothing
    return this.#request(frame, { later: () => once, apply: (ack) => this.#counts.read(channelId, ack) });
  }

  /** Mark a followed thread read: everything, or up to a reply. */
  markThreadRead(channelId, threadId, { upTo } = {}) {
    const known = this.thread(channelId, threadId);
    const frame = { type: "mark_read", channel_id: channelId, thread_id: threadId, up_to: upTo };
    const newest = upTo ?? known?.latest?.id;
    return this.#request(frame, {
      later: () => (newest ? { ...frame, up_to: newest } : null), // what came meanwhile was not seen
      dropped: () => unreadThread(known),
      apply: (ack) => this.#counts.threadRead(channelId, threadId, ack),
    });
  }

  /** Tap the badge: shows who wrote while the user was away, and sets it to 0. With a cursor: more of what it showed. */
  tap({ cursor } = {}) {
    if (cursor) return this.#request({ type: "badge.tap", cursor });
    return this.#request({ type: "badge.tap" }, { apply: () => this.#counts.tapped() });
  }

  /** A call of the HTTP API as the user: http("GET", "/v1/users/me/inbox"). */
  http(method, path, body) {
    return this.#http.call(method, path, body);
  }

  #read(read, options) {
    const apply = (ack) => this.#counts.read(read.channel_id, ack);
    return this.#request({ type: "mark_read", ...read }, { apply, ...options });
  }

  /** Now everything is read. Later, only what was known when it was called: what came meanwhile was not seen. */
  #readAll(id) {
    const known = this.#readKnown(id);
    return this.#read({ channel_id: id, epoch: known.epoch }, { later: () => known, hold: id });
  }

  /** Reads what is known of a channel. Nothing is, if nothing was unread: that changes nothing, and is answered. */
  #readKnown(id) {
    return { type: "mark_read", channel_id: id, up_to_seq: this.#counts.newest(id) ?? 0, epoch: this.#epoch(id) };
  }

  /** Before the first connection nothing is known here; when it will be, more may be there than now. */
  async #readAllThere(id) {
    if (this.state === "closed") throw closed();
    const now = await this.#http.unread(id);
    const epoch = this.#epoch(id, now?.last_read.epoch);
    return this.#read({ channel_id: id, up_to_seq: now?.latest?.seq ?? 0, epoch });
  }

  /** The epoch that a request names; none after a mark-unread that is not answered yet, which makes a new one. */
  #epoch(channelId, seen = this.#counts.epoch(channelId)) {
    const renewing = ({ type, channel_id }) => type === "mark_unread" && channel_id === channelId;
    return this.#outbox.holds(renewing) ? undefined : seen;
  }

  /** Nobody looks: the channel is opened when the page is visible. */
  async #peek(channelId) {
    const before = await this.#http.unread(channelId);
    if (before) return before;
    if (this.#focus?.channelId === channelId) this.#focus = null;
    throw new ReadstateError({ code: "forbidden", detail: `${this.user} is not a member of ${channelId}.`, status: 403 });
  }

  /** Another channel is open now, or none: what waits takes note. */
  #lookAt(focus) {
    this.#focus = focus;
    this.#outbox.revise();
    return focus;
  }

  #sendFocus(focus, first = false) {
    const { channelId: id, read } = focus;
    const frame = { type: "channel.focus", channel_id: id, read };
    const before = this.unread(id);
    const seen = read ? this.#readKnown(id) : null;
    let over = false;
    return this.#request(frame, {
      first,
      hold: read ? id : undefined,
      later: () => {
        over ||= this.#focus !== focus || this.#hidden;
        return over ? seen : frame; // whoever has left sees no more of it
      },
      dropped: () => before,
      apply: (ack) => {
        if (ack.after) return this.#counts.opened(id, ack);
        this.#counts.read(id, ack);
        return before;
      },
      refused: () => {
        if (this.#focus === focus) this.#focus = null;
      },
    });
  }

  /** The page or the connection is back: the channel that is open is read again. */
  #focusAgain(first) {
    const focus = this.#focus;
    this.#sendFocus(focus, first).then(
      (before) => this.#focus === focus && this.#listeners.emit("focus", { channel_id: focus.channelId, before }),
      (error) => this.#listeners.emit("error", error),
    );
  }

  async #sendBlur(channelId) {
    if (this.state !== "live") return;
    const frame = { type: "channel.blur", channel_id: channelId };
    await this.#request(frame, { later: () => null }); // the focus has ended with the connection
  }

  get #hidden() {
    return this.#options.page?.visibilityState === "hidden";
  }

  #seen = () => {
    if (!this.#hidden) this.#online(); // a sleeping tab need not wait any longer
    if (!this.#focus) return;
    if (!this.#hidden) return this.#focusAgain(false);
    this.#outbox.revise();
    this.#sendBlur(this.#focus.channelId).catch((error) => this.#listeners.emit("error", error));
  };

  /** Send a request, now or when the connection is back. What it changes here is applied with its answer. */
  #request(frame, { first = false, later, hold, apply, refused, dropped } = {}) {
    if (this.state === "closed") return Promise.reject(closed());
    const { promise, resolve, reject } = deferred();
    if (hold !== undefined) this.#counts.hold(hold);
    const request = {
      later,
      answered: ({ type, ref, ...answer }) => {
        if (hold !== undefined) this.#counts.release(hold, true);
        resolve(apply?.(answer) ?? answer);
      },
      failed: (error) => {
        if (hold !== undefined) this.#counts.release(hold);
        refused?.();
        reject(error);
      },
      dropped: () => {
        if (hold !== undefined) this.#counts.release(hold);
        resolve(dropped?.());
      },
    };
    if (first) this.#outbox.addFirst(frame, request);
    else this.#outbox.add(frame, request);
    return promise;
  }
}

/** What a read of a thread answers, of which no reply was known. */
async function unreadThread(known) {
  if (known) return { last_read: known.last_read, unread: known.unread, label: known.label, changed: false };
  const detail = "As far as is known here, the user does not follow this thread.";
  throw new ReadstateError({ code: "thread_not_found", detail, field: "thread", retry: true });
}

function closed() {
  return new ReadstateError({ code: "closed", detail: "This client is closed." });
}
