/** One WebSocket connection, the requests that outlive it, and what they need. */

import { ReadstateError } from "./readstate-http.js";

const PING_EVERY = 25_000;
const PONG_WITHIN = 10_000;
const READY_WITHIN = 15_000;
const MAX_WAITING = 1_000;
/** Requests on their way at once: a long queue must not look like a flood to the service. */
const WINDOW = 16;

/** Runs functions later; all at once they can be told not to. */
export class Timers {
  #set;
  #clear;
  #running = new Set();

  constructor(set, clear) {
    this.#set = set;
    this.#clear = clear;
  }

  /** Run it after some milliseconds; returns what calls it off, and then tells whether it was still to come. */
  after(milliseconds, run) {
    const handle = this.#set(() => this.#running.delete(handle) && run(), milliseconds);
    this.#running.add(handle);
    return () => {
      const waited = this.#running.delete(handle);
      if (waited) this.#clear(handle);
      return waited;
    };
  }

  clear() {
    for (const handle of this.#running) this.#clear(handle);
    this.#running.clear();
  }
}

/** Who listens to what. */
export class Listeners {
  #byType = new Map();

  /** Returns what ends it. */
  add(type, listener) {
    if (!this.#byType.has(type)) this.#byType.set(type, new Set());
    const listeners = this.#byType.get(type).add(listener);
    return () => listeners.delete(listener);
  }

  emit(type, event) {
    for (const listener of [...(this.#byType.get(type) ?? [])]) {
      try {
        listener(event);
      } catch (error) {
        queueMicrotask(() => {
          throw error; // what a listener does wrong is told, and breaks nothing here
        });
      }
    }
  }
}

/** A promise that is settled from outside. */
export function deferred() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}

/** One connection: from opening to closing, and never again. */
export class Connection {
  #socket;
  #timers;
  #handlers;
  #answers = new Map();
  #refs = 0;
  #heard = false;
  #cancelReady;
  #cancelPing;

  /**
   * @param {{url: string, hello: object, WebSocket: typeof WebSocket, timers: Timers}} options
   * @param {{frame: (frame: object) => void, closed: (code: number) => void}} handlers
   *   `closed` is called exactly once, unless `leave` ended the connection.
   */
  constructor({ url, hello, WebSocket, timers }, handlers) {
    this.#timers = timers;
    this.#handlers = handlers;
    this.#socket = new WebSocket(url);
    this.#cancelReady = timers.after(READY_WITHIN, () => this.#lost(1006));
    this.#socket.onopen = () => this.#send({ type: "hello", ...hello });
    this.#socket.onmessage = ({ data }) => this.#receive(data);
    this.#socket.onclose = ({ code }) => this.#lost(code);
    this.#socket.onerror = () => {}; // a close follows
  }

  /** Send a frame; `answered` gets its `ack`, `error` or `pong`, or nothing if the connection ends before. */
  request(frame, answered) {
    const ref = `${++this.#refs}`;
    this.#answers.set(ref, answered);
    this.#send({ ...frame, ref });
  }

  /** End the connection without another word. */
  leave() {
    const socket = this.#socket;
    this.#handlers = null;
    this.#answers.clear();
    this.#cancelReady();
    this.#cancelPing?.();
    socket.onmessage = socket.onclose = socket.onopen = null;
    try {
      socket.close(1000);
    } catch {
      // it was never open
    }
  }

  #send(frame) {
    if (this.#socket.readyState === 1) this.#socket.send(JSON.stringify(frame));
  }

  #receive(data) {
    this.#heard = true;
    const frame = JSON.parse(data);
    if (frame.type === "ready") {
      this.#cancelReady();
      this.#cancelPing = this.#timers.after(PING_EVERY, () => this.#ping());
    }
    const answered = this.#answers.get(frame.ref);
    if (answered && (frame.type === "ack" || frame.type === "error" || frame.type === "pong")) {
      this.#answers.delete(frame.ref);
      answered(frame);
    }
    this.#handlers?.frame(frame);
  }

  /** A connection may be dead without anybody noticing: whoever says nothing after a ping is gone. */
  #ping() {
    this.#heard = false;
    this.request({ type: "ping" }, () => {});
    this.#cancelPing = this.#timers.after(PONG_WITHIN, () => {
      if (!this.#heard) return this.#lost(1006);
      this.#cancelPing = this.#timers.after(PING_EVERY - PONG_WITHIN, () => this.#ping());
    });
  }

  #lost(code) {
    const handlers = this.#handlers;
    this.leave();
    handlers?.closed(code);
  }
}

/** Requests in order: they wait for a connection, and go again over the next one if an answer was lost. */
export class Outbox {
  #connection = null;
  #waiting = [];
  #sent = [];
  #limited;

  /** @param {() => void} limited called when a request was over the rate: it must end with `detach` */
  constructor(limited) {
    this.#limited = limited;
  }

  /**
   * @param {object} frame what to send
   * @param {{
   *   answered: (frame: object) => void, failed: (error: Error) => void,
   *   later?: () => object | null, dropped?: () => void,
   * }} request
   *   `later` tells what to send instead of `frame` when it could not be sent at once, or its answer was lost;
   *   null: nothing is left to do, and `dropped` is called.
   */
  add(frame, request) {
    if (this.#waiting.length >= MAX_WAITING) {
      const detail = `${MAX_WAITING} requests wait for the connection already.`;
      return request.failed(new ReadstateError({ code: "queue_full", detail, retry: true }));
    }
    this.#waiting.push({ frame, ...request });
    this.revise();
    this.#pump();
  }

  /** The same, before everything that waits. */
  addFirst(frame, request) {
    this.#waiting.unshift({ frame, ...request });
    this.#pump();
  }

  /** Whether any such frame is not answered yet. */
  holds(such) {
    return [...this.#sent, ...this.#waiting].some(({ frame }) => such(frame));
  }

  /** Send over this connection from now on. */
  attach(connection) {
    this.#connection = connection;
    this.#pump();
  }

  /** The connection is gone; what it has not answered waits for the next one. */
  detach() {
    this.#connection = null;
    this.#waiting = [...this.#sent, ...this.#waiting];
    this.#sent = [];
    this.revise();
  }

  /** Without a connection, whatever waits is asked what is left to do of it. */
  revise() {
    if (this.#connection) return;
    for (const request of this.#waiting) if (request.later) request.frame = request.later();
    const dropped = this.#waiting.filter(({ frame }) => !frame);
    this.#waiting = this.#waiting.filter(({ frame }) => frame);
    for (const request of dropped) request.dropped(); // last: a listener may ask for more
  }

  /** Give up what is on its way, because it ended the connection; or all that waits, too. */
  fail(error, { waiting = false } = {}) {
    const requests = waiting ? [...this.#sent, ...this.#waiting] : this.#sent;
    this.#sent = [];
    if (waiting) this.#waiting = [];
    for (const request of requests) request.failed(error);
  }

  #pump() {
    while (this.#connection && this.#waiting.length > 0 && this.#sent.length < WINDOW) {
      const request = this.#waiting.shift();
      this.#sent.push(request);
      this.#connection.request(request.frame, (frame) => {
        if (frame.code === "rate_limited") return this.#limited();
        this.#sent.splice(this.#sent.indexOf(request), 1);
        if (frame.type === "error") request.failed(new ReadstateError(frame));
        else request.answered(frame);
        this.#pump();
      });
    }
  }
}
