/** A real service in a child process, a line to it that can be cut, and a chat backend that talks to it. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createHmac, randomBytes } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { isDeepStrictEqual } from "node:util";

import { Readstate } from "../readstate.js";

const ROOT = fileURLToPath(new URL("../../..", import.meta.url));
const DEADLINE = 60_000;
const KEY = randomBytes(24).toString("hex");
const SECRET = randomBytes(32).toString("hex");

/** Resolves when the condition holds (its value is truthy); fails with `what` when it does not in time. */
export async function until(what, condition, deadline = DEADLINE) {
  const end = Date.now() + deadline;
  for (;;) {
    const value = await condition();
    if (value) return value;
    assert.ok(Date.now() < end, `waited ${deadline} ms in vain until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** A token of a user, as a chat backend signs it. */
export function tokenFor(user, { ttl = 3600, secret = SECRET } = {}) {
  const part = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
  const body = `${part({ alg: "HS256", typ: "JWT" })}.${part({ sub: user, exp: Math.floor(Date.now() / 1000) + ttl })}`;
  return `${body}.${createHmac("sha256", secret).update(body).digest("base64url")}`;
}

/** Small, fast, and the same everywhere (mulberry32). */
export function dice(seed) {
  let state = seed;
  const roll = () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  const pick = (list) => list[Math.floor(roll() * list.length)];
  return { roll, pick, chance: (p) => roll() < p, upTo: (n) => Math.floor(roll() * (n + 1)) };
}

const children = new Set();
process.on("exit", () => {
  for (const child of children) child.kill("SIGKILL");
});

/**
 * `readstate serve` over a data directory of its own: started, stopped, killed, and started again. It then has another
 * port, because somebody else may have taken the old one; whoever must come back goes over a `Line`.
 */
export class Service {
  url = "";
  log = [];
  #child = null;
  #dir;
  #settings;

  static async start(settings = {}) {
    const service = new Service();
    service.#dir = await mkdtemp(path.join(tmpdir(), "readstate-js-"));
    service.#settings = settings;
    await service.start();
    return service;
  }

  get port() {
    return Number(new URL(this.url).port);
  }

  async start() {
    const command = ["-m", "readstate", "serve", "--port", "0", "--data-dir", path.join(this.#dir, "data")];
    const child = spawn(python(), command, { cwd: this.#dir, env: this.#environment(), stdio: ["ignore", "pipe", "pipe"] });
    this.#child = child;
    children.add(child);
    child.once("exit", () => children.delete(child));
    const listens = new Promise((resolve, reject) => {
      const read = (line) => {
        this.log.push(line);
        const found = line.includes('"event": "listening"') && JSON.parse(line);
        if (found) resolve(found.url);
      };
      createInterface(child.stdout).on("line", read);
      createInterface(child.stderr).on("line", read);
      child.once("exit", (code) => reject(new Error(`the service ended early (${code}):\n${this.log.join("\n")}`)));
    });
    this.url = await listens;
  }

  /** Ask it to stop, as a deployment does. */
  stop() {
    return this.#end("SIGTERM");
  }

  /** End it at once, as a power cut would. */
  kill() {
    return this.#end("SIGKILL");
  }

  async close() {
    if (this.#child) await this.kill();
    await rm(this.#dir, { recursive: true, force: true });
  }

  async #end(signal) {
    const child = this.#child;
    this.#child = null;
    const gone = new Promise((resolve) => child.once("exit", resolve));
    child.kill(signal);
    await gone;
  }

  #environment() {
    const kept = Object.entries(process.env).filter(([name]) => !name.startsWith("READSTATE_"));
    const own = { SERVICE_KEYS: KEY, JWT_SECRET: SECRET, RATE_LIMIT: 0, MAX_DEVICES: 0, ...this.#settings };
    return Object.fromEntries([...kept, ...Object.entries(own).map(([name, value]) => [`READSTATE_${name}`, `${value}`])]);
  }
}

function python() {
  if (process.env.READSTATE_PYTHON) return process.env.READSTATE_PYTHON;
  const local = path.join(ROOT, ".venv", "bin", "python");
  return existsSync(local) ? local : "python3";
}

/** A way to the service, wherever it listens now, that can be cut, and kept shut. */
export class Line {
  shut = false;
  #pairs = new Set();
  #server;

  static async to(service) {
    const line = new Line();
    line.#server = net.createServer((near) => {
      if (line.shut) return near.destroy();
      const far = net.connect(service.port, "127.0.0.1");
      const pair = [near, far];
      line.#pairs.add(pair);
      near.pipe(far).pipe(near);
      for (const socket of pair) {
        socket.on("error", () => {});
        socket.on("close", () => {
          line.#pairs.delete(pair);
          for (const other of pair) other.destroy();
        });
      }
    });
    await new Promise((resolve) => line.#server.listen(0, "127.0.0.1", resolve));
    line.url = `http://127.0.0.1:${line.#server.address().port}`;
    return line;
  }

  /** Let nothing through any more, without a word to either side: a dead network. */
  freeze() {
    for (const [near, far] of this.#pairs) {
      near.unpipe(far).pause();
      far.unpipe(near).pause();
    }
  }

  /** Break everything that goes over it now. */
  cut() {
    for (const pair of this.#pairs) for (const socket of pair) socket.destroy();
  }

  close() {
    this.cut();
    return new Promise((resolve) => this.#server.close(resolve));
  }
}

/** A page of a browser, as far as the client looks at it. */
export class Page extends EventTarget {
  visibilityState = "visible";

  hide() {
    this.#turn("hidden");
  }

  show() {
    this.#turn("visible");
  }

  #turn(state) {
    this.visibilityState = state;
    this.dispatchEvent(new Event("visibilitychange"));
  }
}

/** The chat backend: it may do everything. What fails, fails the test. */
export class Backend {
  constructor(service) {
    this.service = service;
  }

  async call(method, where, body) {
    const answer = await fetch(this.service.url + where, {
      method,
      headers: { Authorization: `Bearer ${KEY}`, "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    const text = await answer.text();
    assert.ok(answer.ok, `${method} ${where}: ${answer.status} ${text}`);
    return text ? JSON.parse(text) : null;
  }

  channel(name, members, more = {}) {
    return this.call("PUT", `/v1/channels/${name}`, { type: "group", members, ...more });
  }

  /** Send a message; its id is given back. */
  async send(channel, sender, more = {}) {
    const message = { channel_id: channel, sender_id: sender, text: "…", ...more };
    const { results } = await this.call("POST", "/v1/messages", { messages: [message] });
    assert.equal(results[0].status, "accepted", JSON.stringify(results[0]));
    return results[0].id;
  }

  read(user, channel, body = {}) {
    return this.call("POST", `/v1/users/${user}/channels/${channel}/read`, body);
  }

  prefer(user, channel, body) {
    return this.call("PUT", `/v1/users/${user}/channels/${channel}/preferences`, body);
  }

  members(channel, body) {
    return this.call("POST", `/v1/channels/${channel}/members`, body);
  }

  /** All that a user would learn from a new login: what the client must know too. */
  async login(user) {
    const sync = await this.call("GET", `/v1/users/${user}/unread?limit=1000`);
    const threads = await this.call("GET", `/v1/users/${user}/threads?limit=1000`);
    const { senders, label } = await this.call("GET", `/v1/users/${user}/badge`);
    return {
      channels: byName(sync.channels, ({ channel_id }) => channel_id),
      totals: sync.totals,
      threads: byName(threads.threads, ({ channel_id, thread_id }) => `${channel_id}/${thread_id}`),
      threadTotals: threads.totals,
      badge: { senders, label },
    };
  }
}

/**
 * What a client knows, in the form of a login. Of channels without unread a login tells nothing; and of a channel
 * that it first heard of by a message, a client knows all but the pointer, which the login then fills in.
 */
export function known(rs, login) {
  const entries = [...rs.channels.values()].filter((entry) => entry.has_unread);
  const whole = entries.map((entry) =>
    entry.last_read ? entry : { ...entry, last_read: login.channels[entry.channel_id]?.last_read },
  );
  return {
    channels: byName(whole, ({ channel_id }) => channel_id),
    totals: rs.totals,
    threads: byName([...rs.threads.values()], ({ channel_id, thread_id }) => `${channel_id}/${thread_id}`),
    threadTotals: rs.threadTotals,
    badge: rs.badge,
  };
}

function byName(rows, name) {
  return Object.fromEntries(rows.map((row) => [name(row), row]).sort(([a], [b]) => (a < b ? -1 : 1)));
}

/**
 * What a new login of a user tells when all devices have heard of everything. What a device that was cut off did not
 * confirm comes to the badge a little later: that is waited for, and nothing else.
 */
export async function loginOf(backend, devices) {
  return until("the badge stands", async () => {
    for (const rs of devices) await rs.settled(); // what was done is done,
    for (const rs of devices) await rs.settled(); // and the others know
    const login = await backend.login(devices[0].user);
    return devices.every((rs) => isDeepStrictEqual(rs.badge, login.badge)) && login;
  });
}

/** The client knows exactly what a new login would tell. */
export async function agrees(backend, rs) {
  const login = await loginOf(backend, [rs]);
  assert.deepEqual(known(rs, login), login);
}

/** A device of a user; it is closed with the test. */
export function device(t, user, url, options = {}) {
  const rs = new Readstate({ url, device: "laptop", getToken: async () => tokenFor(user), page: null, ...options });
  t.after(() => rs.close());
  return rs;
}

/**
 * Waits are shortened: how long they are is not what the tests are about. Those for an answer (10 s and more) stay
 * long enough for a machine that has much to do.
 */
export const hurry = {
  setTimeout: (run, milliseconds) => setTimeout(run, milliseconds / (milliseconds < 10_000 ? 20 : 4)),
};

/** Resolves with the next frame of a type. */
export function next(rs, type, wanted = () => true) {
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`waited ${DEADLINE} ms in vain for ${type}`)), DEADLINE);
    const off = rs.on(type, (event) => {
      if (!wanted(event)) return;
      off();
      clearTimeout(late);
      resolve(event);
    });
  });
}
