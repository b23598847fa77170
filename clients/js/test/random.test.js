/**
 * Whatever happens, in whatever order: afterwards every device knows exactly what a new login would tell.
 *
 * A run is planned from a seed, and done by several hands at once. `SEED=… npm test` repeats a plan, `STEPS=…`
 * makes it longer.
 */

import assert from "node:assert/strict";
import { randomInt } from "node:crypto";
import { test } from "node:test";

import { ReadstateError } from "../readstate.js";
import { Backend, device, dice, hurry, known, Line, loginOf, Service } from "./harness.js";

const SEED = Number(process.env.SEED ?? randomInt(2 ** 31));
const STEPS = Number(process.env.STEPS ?? 500);
const HANDS = 4;
const ME = "bob";
const OTHERS = ["alice", "carol", "dave"];
const CHANNELS = ["pair", "small", "large", "open", "quiet"];
/** Refusals that a plan may run into, because somebody else was faster. */
const EXPECTED = new Set([
  "channel_archived",
  "channel_not_found",
  "forbidden",
  "message_deleted",
  "message_not_found",
  "message_without_seq",
  "not_a_member",
  "reply_to_reply",
  "thread_not_found",
  "undo_not_found",
]);

/** Plans steps: each has a name and does something. All choices are made here, in order. */
class Plan {
  #messages = Object.fromEntries(CHANNELS.map((name) => [name, []]));
  #count = 0;
  #undo = null;

  constructor(seed, world) {
    this.dice = dice(seed);
    this.world = world;
  }

  next() {
    const { pick, roll } = this.dice;
    const kinds = [
      [34, "send"], [9, "reply"], [3, "edit"], [4, "remove"], [8, "read"], [6, "readElsewhere"], [5, "unread"],
      [6, "prefer"], [4, "membership"], [5, "archive"], [6, "focus"], [4, "blur"], [4, "thread"], [2, "tap"],
      [2, "all"], [4, "cut"], [3, "leave"], [3, "comeBack"],
    ];
    let left = roll() * kinds.reduce((sum, [weight]) => sum + weight, 0);
    const kind = kinds.find(([weight]) => (left -= weight) < 0)[1];
    return this[kind](pick(CHANNELS), pick(this.world.devices));
  }

  #message(channel) {
    return this.dice.pick(this.#messages[channel]) ?? "m0";
  }

  #new(channel, more) {
    const { pick, chance } = this.dice;
    const id = `m${++this.#count}`;
    const mentions = chance(0.2) ? [pick([ME, "@channel", "@here", ...OTHERS])] : [];
    const sender = chance(0.15) ? ME : pick(OTHERS);
    const body = { id, channel_id: channel, sender_id: sender, text: id, mentions, outside: true, ...more };
    this.#messages[channel].push(id);
    return [`${sender} ${JSON.stringify(body)}`, () => this.world.call("POST", "/v1/messages", body)];
  }

  send(channel) {
    return this.#new(channel, { silent: this.dice.chance(0.1) });
  }

  reply(channel) {
    return this.#new(channel, { thread_id: this.#message(channel), also_to_channel: this.dice.chance(0.3) });
  }

  edit(channel) {
    const [id, mentions] = [this.#message(channel), this.dice.pick([[], [ME], ["@channel"]])];
    const path = `/v1/channels/${channel}/messages/${id}`;
    return [`edit ${id} ${mentions}`, () => this.world.call("PATCH", path, { mentions })];
  }

  remove(channel) {
    const id = this.#message(channel);
    return [`delete ${id}`, () => this.world.call("DELETE", `/v1/channels/${channel}/messages/${id}`)];
  }

  #target(channel) {
    const { pick, upTo } = this.dice;
    const messages = this.#messages[channel];
    return pick([
      {},
      {},
      { up_to: this.#message(channel) },
      { up_to_seq: upTo(messages.length) },
      { messages: [this.#message(channel), this.#message(channel)] },
    ]);
  }

  read(channel, { name, rs }) {
    const { up_to: upTo, up_to_seq: upToSeq, messages } = this.#target(channel);
    const target = { upTo, upToSeq, messages };
    return [`${name} reads ${channel} ${JSON.stringify(target)}`, () => this.world.later(rs.markRead(channel, target))];
  }

  readElsewhere(channel) {
    const body = this.#target(channel);
    const path = `/v1/users/${ME}/channels/${channel}/read`;
    return [`read ${channel} ${JSON.stringify(body)}`, () => this.world.call("POST", path, body)];
  }

  unread(channel, { name, rs }) {
    const id = this.#message(channel);
    return [`${name} marks ${id} unread`, () => this.world.later(rs.markUnread(channel, id))];
  }

  prefer(channel) {
    const body = this.dice.pick([
      { muted: true }, { muted: false }, { muted: Date.now() + 3_600_000 }, { count: "all" }, { count: "mentions" },
      { count: "none" }, { pinned: true }, { archived: true }, { archived: false },
    ]);
    const path = `/v1/users/${ME}/channels/${channel}/preferences`;
    return [`prefer ${channel} ${JSON.stringify(body)}`, () => this.world.call("PUT", path, body)];
  }

  membership(channel) {
    const { pick, chance } = this.dice;
    const body = chance(0.4) ? { remove: [ME] } : { add: [ME], history: pick(["read", "unread", 3]) };
    const path = `/v1/channels/${channel}/members`;
    return [`members ${channel} ${JSON.stringify(body)}`, () => this.world.call("POST", path, body)];
  }

  archive(channel) {
    const { pick } = this.dice;
    const body = pick([{ archived: false }, { archived: true }, { name: `${channel} ${this.#count}` }]);
    return [`channel ${channel} ${JSON.stringify(body)}`, () => this.world.call("PUT", `/v1/channels/${channel}`, body)];
  }

  focus(channel, { name, rs }) {
    const read = this.dice.chance(0.8);
    return [`${name} opens ${channel} ${read}`, () => this.world.later(rs.focus(channel, { read }))];
  }

  blur(_, { name, rs }) {
    return [`${name} looks away`, () => this.world.later(rs.blur())];
  }

  thread(channel, { name, rs }) {
    const { pick } = this.dice;
    const root = this.#message(channel);
    const path = `/v1/users/${ME}/channels/${channel}/threads/${root}/follow`;
    return pick([
      [`${name} reads thread ${root}`, () => this.world.later(rs.markThreadRead(channel, root))],
      [`follow ${root}`, () => this.world.call("PUT", path)],
      [`unfollow ${root}`, () => this.world.call("DELETE", path)],
    ]);
  }

  tap(_, { name, rs }) {
    return [`${name} taps`, () => this.world.later(rs.tap())];
  }

  all() {
    if (this.dice.chance(0.5)) {
      const read = async () => {
        this.#undo = (await this.world.call("POST", `/v1/users/${ME}/read`, { all: true }))?.undo;
      };
      return ["read all", read];
    }
    const undo = () => this.world.call("POST", `/v1/users/${ME}/read/undo`, { undo: this.#undo ?? "none" });
    return ["undo", undo];
  }

  cut(_, { name, line }) {
    return [`cut the line of ${name}`, async () => line.cut()];
  }

  leave(_, { name, rs }) {
    return [`${name} goes offline`, async () => rs.disconnect()];
  }

  comeBack(_, { name, rs }) {
    return [`${name} comes back`, async () => void rs.connect().catch(calledOff)];
  }
}

/** A service, the devices of one user, and what they are asked to do. */
class World {
  pending = [];

  async open(t) {
    // Three members make a channel a large one, so that both ways of counting are met.
    this.service = await Service.start({ FANOUT_MAX_MEMBERS: 3, DISPLAY_CAP: 9 });
    t.after(() => this.service.close());
    this.backend = new Backend(this.service);
    const types = { pair: "direct", small: "group", large: "channel", open: "channel", quiet: "group" };
    const members = { pair: ["alice"], small: ["alice", "carol"], large: OTHERS, open: OTHERS, quiet: ["carol"] };
    for (const name of CHANNELS) await this.backend.channel(name, [ME, ...members[name]], { type: types[name] });
    this.devices = [await this.#device(t, "phone"), await this.#device(t, "laptop")];
  }

  async #device(t, name) {
    const line = await Line.to(this.service);
    t.after(() => line.close());
    const rs = device(t, ME, line.url, { device: name, ...hurry });
    const frames = [];
    rs.on("*", (frame) => frames.push(JSON.stringify({ ...frame, resume: undefined })));
    rs.on("state", (state) => frames.push(state));
    await rs.connect();
    return { name, rs, line, frames };
  }

  /** What a device has got lately, to find out why it is wrong. */
  frames() {
    return this.devices.map(({ name, frames }) => `frames of the ${name}:\n${frames.slice(-60).join("\n")}`).join("\n\n");
  }

  async call(method, path, body) {
    try {
      return await this.backend.call(method, path, body);
    } catch (error) {
      const code = /"code":"(\w+)"/.exec(error.message)?.[1];
      if (!EXPECTED.has(code)) throw error;
      return null;
    }
  }

  /** The answer comes when the connection is there; nobody waits for it now. */
  later(promise) {
    this.pending.push(
      promise.then(
        () => {},
        (error) => assert.ok(error instanceof ReadstateError && EXPECTED.has(error.code), error),
      ),
    );
  }

  /** All are back, everything is answered, and everybody knows the same. */
  async agree() {
    await Promise.all(this.devices.map(({ rs }) => rs.connect()));
    await Promise.all(this.pending.splice(0));
    const login = await loginOf(this.backend, this.devices.map(({ rs }) => rs));
    for (const { name, rs } of this.devices) assert.deepEqual(known(rs, login), login, `the ${name} differs from a login`);
  }
}

function calledOff(error) {
  assert.equal(error.code, "disconnected");
}

async function burst(steps) {
  const left = [...steps];
  const hand = async () => {
    for (let step = left.shift(); step; step = left.shift()) await step[1]();
  };
  await Promise.all(Array.from({ length: HANDS }, hand));
}

test(`after any sequence of events the client knows what a login tells (SEED=${SEED})`, async (t) => {
  const world = new World();
  await world.open(t);
  const plan = new Plan(SEED, world);
  const done = [];
  try {
    for (let step = 0; step < STEPS; ) {
      const steps = Array.from({ length: 1 + plan.dice.upTo(20) }, () => plan.next());
      step += steps.length;
      done.push(...steps.map(([what]) => what), "--");
      await burst(steps);
      if (plan.dice.chance(0.06)) {
        const [what, end] = plan.dice.pick([["restart", "stop"], ["crash", "kill"]]);
        done.push(what);
        await world.service[end]();
        await world.service.start();
      }
      await world.agree();
    }
  } catch (error) {
    const log = world.service.log.slice(-10).join("\n");
    const steps = done.slice(-60).join("\n");
    console.error(`SEED=${SEED}, the last steps:\n${steps}\n\n${world.frames()}\n\nlog of the service:\n${log}`);
    throw error;
  }
});
