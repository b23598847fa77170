/**
 * Whatever happens to the line, what could not be seen stays unread, and what was asked to be read is read.
 *
 * One device does random things, one after the other. Beside it the test notes how far the pointer of each channel must
 * have come, and how far it may. `SEED=… npm test` repeats a run, as far as the network lets it; `ROUNDS=…` makes it
 * longer.
 */

import assert from "node:assert/strict";
import { randomInt } from "node:crypto";
import { test } from "node:test";

import { Backend, device, dice, hurry, Line, next, Page, Service, until } from "./harness.js";

const SEED = Number(process.env.SEED ?? randomInt(2 ** 31));
const ROUNDS = Number(process.env.ROUNDS ?? 15);
const CHANNELS = ["one", "two"];
const STEPS = [
  "send", "send", "send", "reply", "freeze", "lose", "leave", "comeBack", "focus", "focus", "blur", "turn", "read",
  "readThread",
];

/** How far something was written, and has or may have been read. */
const marks = () => ({ sent: 0, must: 0, may: 0 });

class Run {
  channels = Object.fromEntries(CHANNELS.map((name) => [name, marks()]));
  thread = marks();
  page = new Page();
  log = [];
  /** The channel that the user has open, and the one that the service takes to be open. */
  open = null;
  heldOpen = null;
  /** The line is dead, and perhaps nobody has noticed. */
  dead = false;
  /** Offline by hand. */
  away = false;
  #waiting = [];

  async begin(t) {
    this.service = await Service.start();
    t.after(() => this.service.close());
    this.backend = new Backend(this.service);
    this.line = await Line.to(this.service);
    t.after(() => this.line.close());
    for (const name of CHANNELS) await this.backend.channel(name, ["alice", "bob"]);
    await this.backend.channel("talk", ["alice", "bob"]);
    this.root = await this.backend.send("talk", "bob");
    await this.reply();
    this.rs = device(t, "bob", this.line.url, { ...hurry, page: this.page, random: () => 0.01 });
    this.rs.on("state", (state) => state === "live" && this.#live());
    await this.rs.connect();
  }

  #live() {
    this.log.push("(live)");
    this.dead = false;
    if (this.open && this.looks) this.#inView();
  }

  get looks() {
    return this.page.visibilityState === "visible";
  }

  /** Whether what the client sends arrives. */
  get reaches() {
    return this.rs.state === "live" && !this.dead;
  }

  /** The open channel is read, and so is what comes. */
  #inView() {
    this.heldOpen = this.open;
    this.channels[this.open].may = this.channels[this.open].sent;
  }

  /** Something is asked to be read: all of it if that arrives, else what the client knows. */
  async #asked(of, known, answer) {
    const upTo = this.reaches ? of.sent : known;
    of.must = Math.max(of.must, upTo);
    of.may = Math.max(of.may, upTo);
    await this.#answered(answer);
  }

  /** Only where it arrives an answer is waited for now. */
  #answered(answer) {
    this.#waiting.push(answer);
    return this.reaches ? answer : undefined;
  }

  #known(channel) {
    return this.rs.unread(channel).latest?.seq ?? 0;
  }

  async send(channel) {
    const of = this.channels[channel];
    of.sent += 1; // first: the client may come back while it is sent
    await this.backend.send(channel, "alice");
    if (this.heldOpen === channel) of.may = of.sent;
  }

  async reply() {
    this.thread.sent += 1;
    await this.backend.send("talk", "alice", { thread_id: this.root });
  }

  freeze() {
    if (!this.reaches) return;
    this.dead = true;
    this.line.freeze();
  }

  /** The connection breaks, and both sides notice. */
  async lose() {
    this.line.shut = true;
    const noticed = this.away ? null : next(this.rs, "state", (state) => state === "offline");
    this.line.cut();
    await noticed;
    await until("the service noticed", async () => !(await this.backend.call("GET", "/v1/users/bob/presence")).online);
    this.heldOpen = null;
    this.line.shut = false;
  }

  async leave() {
    this.away = true;
    this.rs.disconnect();
    await this.lose();
  }

  async comeBack() {
    if (this.dead && this.rs.state === "live") await this.lose();
    this.away = false;
    await this.rs.connect();
  }

  focus(channel) {
    const { reaches, looks } = this;
    this.open = channel;
    const known = this.#known(channel);
    const opened = this.rs.focus(channel);
    if (!looks) return this.#answered(opened.catch(({ code }) => assert.equal(code, "unreachable")));
    if (reaches) this.#inView();
    return this.#asked(this.channels[channel], known, opened);
  }

  async blur() {
    this.open = null;
    await this.#answered(this.rs.blur());
    if (this.reaches) this.heldOpen = null;
  }

  /** The page is hidden, or shown again. */
  async turn() {
    if (this.looks) this.page.hide();
    else this.page.show();
    if (this.open && this.looks) {
      if (this.reaches) this.#inView();
      await this.#asked(this.channels[this.open], this.#known(this.open), this.rs.settled());
    } else {
      await this.#answered(this.rs.settled());
      if (this.reaches) this.heldOpen = null;
    }
  }

  read(channel) {
    const known = this.#known(channel);
    return this.#asked(this.channels[channel], known, this.rs.markRead(channel));
  }

  readThread() {
    const { latest } = this.rs.thread("talk", this.root);
    return this.#asked(this.thread, latest.seq, this.rs.markThreadRead("talk", this.root));
  }

  async check() {
    await this.comeBack();
    await Promise.all(this.#waiting.splice(0));
    await this.rs.settled();
    for (const [name, of] of Object.entries(this.channels)) {
      const { last_read } = await this.backend.call("GET", `/v1/users/bob/channels/${name}/unread`);
      within(name, last_read.seq, of);
    }
    within("the thread", this.rs.thread("talk", this.root).last_read.seq, this.thread);
  }
}

function within(what, seq, { sent, must, may }) {
  assert.ok(must <= seq && seq <= may, `${what} is read up to ${seq}: must be ${must}, may be ${may} of ${sent}`);
}

test(`what could not be seen stays unread (SEED=${SEED})`, async (t) => {
  const { pick, upTo } = dice(SEED);
  const run = new Run();
  await run.begin(t);
  try {
    for (let round = 0; round < ROUNDS; round += 1) {
      for (let left = 3 + upTo(12); left > 0; left -= 1) {
        const [step, channel] = [pick(STEPS), pick(CHANNELS)];
        run.log.push(`${step} ${channel}`);
        await run[step](channel);
      }
      await run.check();
      run.log.push("--");
    }
  } catch (error) {
    console.error(`SEED=${SEED}, the last steps:\n${run.log.slice(-40).join("\n")}`);
    throw error;
  }
});
