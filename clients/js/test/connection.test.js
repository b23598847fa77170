/** Coming and going: nothing is missed and nothing is done twice, whatever happens to the connection. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { agrees, Backend, device, hurry, Line, next, Page, Service, tokenFor, until } from "./harness.js";

let service;
let backend;

before(async () => {
  service = await Service.start();
  backend = new Backend(service);
});
after(() => service.close());

let stories = 0;

/** People and a channel of one story. */
async function story() {
  const n = ++stories;
  const [alice, bob, general, side] = ["alice", "bob", "general", "side"].map((name) => `${name}${n}`);
  await backend.channel(general, [alice, bob]);
  await backend.channel(side, [alice, bob]);
  return { alice, bob, general, side };
}

async function line(t) {
  const made = await Line.to(service);
  t.after(() => made.close());
  return made;
}

const states = (rs) => {
  const seen = [];
  rs.on("state", (state) => seen.push(state));
  return seen;
};

test("offline and back: what was missed comes as events, each once, and no sync is needed", async (t) => {
  const { alice, bob, general } = await story();
  const rs = device(t, bob, service.url);
  await rs.connect();
  await backend.send(general, alice);
  await rs.settled();
  const heard = [];
  rs.on("message.new", ({ message_id }) => heard.push(message_id));
  const syncs = [];
  rs.on("change", ({ what }) => what === "sync" && syncs.push(what));

  rs.disconnect();
  assert.equal(rs.state, "offline");
  assert.equal(rs.unread(general).unread, 1, "what was known stays");
  const missed = [await backend.send(general, alice), await backend.send(general, alice)];
  await rs.connect();

  assert.deepEqual(heard, missed);
  assert.deepEqual(syncs, []);
  assert.equal(rs.unread(general).unread, 3);
  await agrees(backend, rs);
});

test("a cut line heals by itself", async (t) => {
  const { alice, bob, general } = await story();
  const wire = await line(t);
  const rs = device(t, bob, wire.url, hurry);
  await rs.connect();
  const seen = states(rs);

  wire.cut();
  await backend.send(general, alice);
  await until("it is back", () => seen.includes("live"));

  assert.deepEqual(seen.slice(0, 2), ["offline", "connecting"]);
  await rs.settled();
  assert.equal(rs.unread(general).unread, 1);
  await agrees(backend, rs);
});

test("a line that has died silently is noticed", async (t) => {
  const { alice, bob, general } = await story();
  const wire = await line(t);
  const rs = device(t, bob, wire.url, hurry);
  await rs.connect();

  const lost = next(rs, "state", (state) => state === "offline");
  wire.freeze();
  await backend.send(general, alice);
  await lost;
  await until("it is back", () => rs.state === "live");

  assert.equal(rs.unread(general).unread, 1);
  await agrees(backend, rs);
});

test("as long as the service cannot be reached, the client tries; connect() waits for it", async (t) => {
  const { alice, bob, general } = await story();
  const wire = await line(t);
  const rs = device(t, bob, wire.url, hurry);
  await rs.connect();
  wire.shut = true;
  wire.cut();
  const tries = [];
  rs.on("state", (state) => state === "connecting" && tries.push(state));

  await backend.send(general, alice);
  await until("it has tried", () => tries.length >= 3);
  assert.notEqual(rs.state, "live");
  wire.shut = false;
  await rs.connect();

  assert.equal(rs.unread(general).unread, 1);
  await agrees(backend, rs);
});

test("who looks at the page again does not wait for the next try", async (t) => {
  const { alice, bob, general } = await story();
  const wire = await line(t);
  const page = Object.assign(new EventTarget(), { visibilityState: "visible" });
  const never = (run, milliseconds) => setTimeout(run, Math.min(milliseconds * 1000, 2 ** 31 - 1));
  const rs = device(t, bob, wire.url, { page, setTimeout: never });
  await rs.connect();
  const lost = next(rs, "state", (state) => state === "offline");
  wire.cut();
  await lost;

  await backend.send(general, alice);
  page.dispatchEvent(new Event("visibilitychange"));
  await until("it is back", () => rs.state === "live");
  await agrees(backend, rs);

  rs.disconnect();
  page.dispatchEvent(new Event("visibilitychange"));
  assert.equal(rs.state, "offline", "whoever went offline by hand stays so");
});

test("listeners may come and go with the connection", async (t) => {
  const { bob } = await story();
  const wire = await line(t);
  const rs = device(t, bob, wire.url, hurry);
  await rs.connect();
  let ready = 0;
  rs.on("ready", () => (ready += 1));
  const refusals = [];
  rs.on("state", (state) => state === "offline" && rs.connect().catch(({ code }) => refusals.push(code)));

  wire.cut();
  await until("it is back", () => rs.state === "live");
  await rs.settled();
  assert.equal(ready, 1, "it came back once");

  const off = rs.on("state", (state) => state === "live" && rs.disconnect());
  wire.cut();
  await until("it was sent away as soon as it was live", () => refusals.length > 0);
  off();
  await rs.connect();
  assert.ok(refusals.every((code) => code === "disconnected"));
  await agrees(backend, rs);
});

test("a first sync that fails is told, and can be tried again", async (t) => {
  const { bob } = await story();
  const wire = await line(t);
  wire.shut = true;
  const rs = device(t, bob, wire.url);

  await assert.rejects(rs.connect(), { code: "unreachable", retry: true });
  assert.equal(rs.state, "idle");
  wire.shut = false;
  await rs.connect();

  assert.equal(rs.state, "live");
});

test("what is done offline is sent in order after coming back", async (t) => {
  const { alice, bob, general, side } = await story();
  const first = await backend.send(general, alice);
  await backend.send(general, alice);
  await backend.send(side, alice);
  const rs = device(t, bob, service.url);
  await rs.connect();

  rs.disconnect();
  const done = [rs.markRead(general), rs.markUnread(general, first), rs.markRead(side), rs.tap()];
  assert.equal(rs.unread(side).unread, 0, "reading shows at once");
  await rs.connect();

  const [read, unread] = await Promise.all(done);
  assert.deepEqual([read.unread, unread.unread], [0, 2]);
  assert.equal(rs.unread(general).unread, 2);
  assert.equal(rs.unread(side).unread, 0);
  await agrees(backend, rs);
});

test("what is read after it was marked unread is read, whoever waits for the answers", async (t) => {
  const { alice, bob, general } = await story();
  const first = await backend.send(general, alice);
  const rs = device(t, bob, service.url);
  await rs.connect();

  await Promise.all([rs.markUnread(general, first), rs.markRead(general)]);
  assert.equal(rs.unread(general).unread, 0);
  rs.disconnect();
  const done = [rs.markUnread(general, first), rs.markRead(general)];
  await rs.connect();
  await Promise.all(done);

  assert.equal(rs.unread(general).unread, 0);
  await agrees(backend, rs);
});

test("what came while a read waited was not seen, and stays unread", async (t) => {
  const { alice, bob, general, side } = await story();
  await backend.send(general, alice);
  await backend.send(side, alice);
  const rs = device(t, bob, service.url);
  await rs.connect();

  rs.disconnect();
  const read = rs.markRead(general);
  const opened = rs.focus(side);
  const left = rs.blur();
  await backend.send(general, alice);
  await backend.send(side, alice);
  await rs.connect();
  await Promise.all([read, opened, left]);

  assert.equal((await opened).unread, 1);
  await rs.settled();
  assert.equal(rs.unread(general).unread, 1);
  assert.equal(rs.unread(side).unread, 1);
  await agrees(backend, rs);
});

for (const [how, leave] of [
  ["left", ({ rs }) => rs.blur()],
  ["left for another one", ({ rs, side }) => rs.focus(side)],
  ["left with the page", ({ page }) => page.hide()],
]) {
  test(`a channel that was opened and ${how} over a dead line is read as far as it was seen`, async (t) => {
    const { alice, bob, general, side } = await story();
    await backend.send(general, alice);
    const wire = await line(t);
    const page = new Page();
    const rs = device(t, bob, wire.url, { ...hurry, page });
    await rs.connect();

    wire.freeze(); // nobody has noticed yet
    const opened = rs.focus(general);
    const left = leave({ rs, side, page });
    const missed = await backend.send(general, alice);
    assert.equal(rs.unread(general).unread, 0, "reading shows at once");
    wire.cut();

    assert.equal((await opened).unread, 1);
    await left;
    await rs.settled();
    assert.equal(rs.unread(general).unread, 1);
    assert.equal(rs.unread(general).first_unread.id, missed);
    await agrees(backend, rs);
  });
}

test("a channel that is still open is read, though it was opened over a dead line", async (t) => {
  const { alice, bob, general, side } = await story();
  const wire = await line(t);
  const rs = device(t, bob, wire.url, hurry);
  await rs.connect();

  wire.freeze();
  const opened = [rs.focus(general), rs.focus(side), rs.focus(general)];
  await backend.send(general, alice);
  await backend.send(side, alice);
  wire.cut();

  await Promise.all(opened);
  await backend.send(general, alice);
  await rs.settled();
  assert.equal(rs.unread(general).unread, 0);
  assert.equal(rs.unread(side).unread, 1);
  await agrees(backend, rs);
});

test("a channel that was only looked at, over a dead line, stays as it was", async (t) => {
  const { alice, bob, general } = await story();
  await backend.send(general, alice);
  const wire = await line(t);
  const rs = device(t, bob, wire.url, hurry);
  await rs.connect();

  wire.freeze();
  const looked = [rs.focus(general, { read: false }), rs.blur()];
  wire.cut();

  assert.equal((await Promise.all(looked))[0].unread, 1);
  await rs.connect();
  assert.equal(rs.unread(general).unread, 1);
  await agrees(backend, rs);
});

for (const [how, lose] of [
  ["offline", ({ rs }) => rs.disconnect()],
  ["over a dead line", ({ wire }) => wire.freeze()],
]) {
  test(`where nothing was unread, a read ${how} reads nothing that comes later`, async (t) => {
    const { alice, bob, general, side } = await story();
    const old = await backend.send(side, alice);
    await backend.read(bob, side);
    const wire = await line(t);
    const rs = device(t, bob, wire.url, hurry);
    await rs.connect();

    lose({ rs, wire });
    const reads = [rs.markRead(general), rs.markRead(side)];
    const missed = await backend.send(general, alice);
    await backend.call("POST", `/v1/users/${bob}/channels/${side}/unread`, { from: old }); // on another device
    wire.cut();
    await rs.connect();

    for (const { unread, changed } of await Promise.all(reads)) assert.deepEqual([unread, changed], [1, false]);
    await rs.settled();
    assert.equal(rs.unread(general).first_unread.id, missed);
    assert.equal(rs.unread(side).first_unread.id, old);
    await agrees(backend, rs);
  });

  test(`a thread that is read ${how} is read as far as it was known`, async (t) => {
    const { alice, bob, general } = await story();
    const [root, empty] = [await backend.send(general, bob), await backend.send(general, bob)];
    const known = await backend.send(general, alice, { thread_id: root });
    await backend.call("PUT", `/v1/users/${bob}/channels/${general}/threads/${empty}/follow`);
    const wire = await line(t);
    const rs = device(t, bob, wire.url, hurry);
    await rs.connect();
    assert.equal(rs.thread(general, root).unread, 1);

    lose({ rs, wire });
    const reads = [rs.markThreadRead(general, root), rs.markThreadRead(general, empty)];
    for (const thread_id of [root, empty, empty]) await backend.send(general, alice, { thread_id });
    await backend.call("DELETE", `/v1/channels/${general}/messages/${known}`); // it stands for a place all the same
    wire.cut();
    await rs.connect();

    const [first, second] = await Promise.all(reads);
    assert.deepEqual([first.unread, first.last_read.id, second.changed], [1, known, false]);
    await rs.settled();
    assert.equal(rs.thread(general, root).unread, 1);
    assert.equal(rs.thread(general, empty).unread, 2);
    await agrees(backend, rs);
  });
}

test("a thread that nothing is known of can't be read later", async (t) => {
  const { alice, bob, general } = await story();
  const root = await backend.send(general, alice);
  const rs = device(t, bob, service.url);
  await rs.connect();

  rs.disconnect();
  const read = rs.markThreadRead(general, root);

  await assert.rejects(read, { code: "thread_not_found", retry: true });
  await rs.connect();
  await assert.rejects(rs.markThreadRead(general, root), { code: "thread_not_found", retry: false });
});

test("a read before the first connection reads what was there when it was asked for", async (t) => {
  const { alice, bob, general, side } = await story();
  await backend.send(general, alice);
  const old = await backend.send(side, alice);
  await backend.read(bob, side);
  let asked = 0;
  const count = async (...args) => {
    const answer = await fetch(...args);
    asked += 1;
    return answer;
  };
  const rs = device(t, bob, service.url, { fetch: count });

  const reads = [rs.markRead(general), rs.markRead(side)];
  await until("it has asked what is there", () => asked === reads.length);
  const missed = await backend.send(general, alice);
  await backend.call("POST", `/v1/users/${bob}/channels/${side}/unread`, { from: old }); // on another device
  await rs.connect();

  assert.deepEqual((await Promise.all(reads)).map(({ unread }) => unread), [1, 1]);
  assert.equal(rs.unread(general).first_unread.id, missed);
  assert.equal(rs.unread(side).first_unread.id, old);
  await agrees(backend, rs);
});

test("marking unread twice while offline: the second one stands", async (t) => {
  const { alice, bob, general } = await story();
  const [first, second] = [await backend.send(general, alice), await backend.send(general, alice)];
  await backend.send(general, alice);
  const rs = device(t, bob, service.url);
  await rs.connect();
  await rs.markRead(general);

  rs.disconnect();
  const done = [rs.markUnread(general, second), rs.markUnread(general, first)];
  await rs.connect();

  assert.deepEqual((await Promise.all(done)).map(({ unread }) => unread), [2, 3]);
  await agrees(backend, rs);
});

test("an answer that is lost with the connection is asked for again", async (t) => {
  const { alice, bob, general } = await story();
  const first = await backend.send(general, alice);
  const wire = await line(t);
  const rs = device(t, bob, wire.url, hurry);
  await rs.connect();

  const read = rs.markRead(general);
  const unread = rs.markUnread(general, first);
  wire.cut();

  assert.equal((await read).unread, 0);
  assert.equal((await unread).unread, 1);
  await agrees(backend, rs);
});

test("too many requests that wait are refused", async (t) => {
  const { alice, bob, general } = await story();
  await backend.send(general, alice);
  const rs = device(t, bob, service.url);
  await rs.connect();
  rs.disconnect();

  const waiting = Array.from({ length: 1000 }, (_, seq) => rs.markRead(general, { upToSeq: seq }));
  await assert.rejects(rs.markRead(general), { code: "queue_full", retry: true });
  assert.equal(rs.unread(general).unread, 1, "a refused read shows nothing");
  await rs.connect();

  await Promise.all(waiting);
  await agrees(backend, rs);
});

test("a channel that is open is opened again after coming back", async (t) => {
  const { alice, bob, general } = await story();
  const rs = device(t, bob, service.url);
  await rs.connect();
  await rs.focus(general);

  rs.disconnect();
  const missed = await backend.send(general, alice);
  const again = next(rs, "focus");
  await rs.connect();

  assert.equal((await again).before.first_unread.id, missed);
  await backend.send(general, alice);
  await rs.settled();
  assert.equal(rs.unread(general).unread, 0);
  await agrees(backend, rs);
});

for (const [how, end] of [
  ["is restarted", () => service.stop()],
  ["crashes", () => service.kill()],
]) {
  test(`a service that ${how} loses nothing, and the client comes back`, async (t) => {
    const { alice, bob, general, side } = await story();
    const wire = await line(t);
    const rs = device(t, bob, wire.url, hurry);
    await rs.connect();
    await backend.send(general, alice);
    const root = await backend.send(side, bob);
    await rs.settled();
    const lost = next(rs, "state", (state) => state === "offline");

    await end();
    await lost;
    const read = rs.markRead(general);
    await service.start();
    await backend.send(general, alice);
    await backend.send(side, alice, { thread_id: root });
    await rs.connect();

    await read;
    await agrees(backend, rs);
    assert.equal(rs.unread(general).unread, 1);
    assert.equal(rs.thread(side, root).unread, 1);
  });
}

test("the token is renewed before it expires, and the connection stays", async (t) => {
  const { alice, bob, general } = await story();
  const rs = device(t, bob, service.url, { getToken: async () => tokenFor(bob, { ttl: 8 }) });
  const ready = next(rs, "ready");
  await rs.connect();
  const seen = states(rs);
  const { expires_at } = await ready;

  const { expires_at: later } = await next(rs, "ack", (ack) => ack.expires_at > expires_at);
  await until("the first token has expired", () => Date.now() > expires_at + 500);
  await backend.send(general, alice);
  await rs.settled();

  assert.ok(later > expires_at);
  assert.deepEqual(seen, []);
  await agrees(backend, rs);
});

test("a token that expires ends the connection, and a new one brings it back", async (t) => {
  const { alice, bob, general } = await story();
  let asked = 0;
  const getToken = async () => {
    asked += 1;
    if (asked === 2) throw new Error("no token today"); // the renewal fails
    return tokenFor(bob, { ttl: asked === 1 ? 5 : 3600 });
  };
  const rs = device(t, bob, service.url, { getToken });
  const errors = [];
  rs.on("error", (error) => errors.push(error.message));
  await rs.connect();

  await next(rs, "state", (state) => state === "offline");
  await backend.send(general, alice);
  await until("it is back", () => rs.state === "live");

  assert.deepEqual(errors, ["no token today"]);
  assert.equal(asked, 3);
  await agrees(backend, rs);
});

test("a token that is refused ends it", async (t) => {
  const { bob } = await story();
  const forged = tokenFor(bob, { secret: "somebody else's secret of 32 bytes or more" });
  const rs = device(t, bob, service.url, { getToken: async () => forged });
  const errors = [];
  rs.on("error", (error) => errors.push(error.status));

  await assert.rejects(rs.connect(), { status: 401 });

  assert.equal(rs.state, "closed");
  assert.deepEqual(errors, [401]);
});

test("a session that ends while connected: the next token has one chance", async (t) => {
  const { bob, general } = await story();
  let asked = 0;
  const forged = tokenFor(bob, { secret: "somebody else's secret of 32 bytes or more" });
  const getToken = async () => (++asked === 1 ? tokenFor(bob, { ttl: 5 }) : forged);
  const rs = device(t, bob, service.url, { getToken, setTimeout: skipRenewal });
  await rs.connect();

  const refused = next(rs, "error", (error) => error.status === 401);
  await refused;

  assert.equal(rs.state, "closed");
  await assert.rejects(rs.markRead(general), { name: "ReadstateError" });
  assert.ok(asked <= 3, `${asked} tokens were asked for`);
});

/** Leaves out the timer of the renewal: the token then expires on the connection. */
function skipRenewal(run, milliseconds) {
  const renewal = milliseconds >= 1_000 && milliseconds <= 5_000;
  return setTimeout(renewal ? () => {} : run, milliseconds);
}

test("more than can be told again is fetched anew", async (t) => {
  const { alice, bob, general, side } = await story();
  const rs = device(t, bob, service.url, hurry);
  await rs.connect();
  await rs.settled();
  const required = [];
  rs.on("sync.required", ({ reason }) => required.push(reason));

  rs.disconnect();
  for (let batch = 0; batch < 3; batch += 1) {
    const messages = Array.from({ length: 500 }, () => ({ channel_id: general, sender_id: alice, text: "…" }));
    await backend.call("POST", "/v1/messages", { messages });
  }
  await backend.send(side, alice);
  await rs.connect();

  assert.equal(required.length, 1);
  assert.equal(rs.unread(general).unread, 1500);
  await agrees(backend, rs);
});

test("a cursor that the service refuses leads to one sync, and what is gone is gone here too", async (t) => {
  const { alice, bob, general, side } = await story();
  const rs = device(t, bob, service.url, hurry);
  await rs.connect();
  await backend.send(general, alice);
  await rs.settled();
  const required = [];
  rs.on("sync.required", ({ reason }) => required.push(reason));

  rs.disconnect();
  await backend.call("DELETE", `/v1/users/${bob}`);
  await backend.channel(side, [bob]);
  await backend.send(side, alice);
  await rs.connect();

  assert.equal(required.length, 1);
  assert.equal(rs.unread(general).unread, 0);
  assert.deepEqual(rs.totals, { unread: 1, mentions: 0, channels: 1 });
  await agrees(backend, rs);
});

test("pages are fetched to the last, however small the service makes them", async (t) => {
  const small = await Service.start({ MAX_PAGE: 10 });
  t.after(() => small.close());
  const chat = new Backend(small);
  for (let n = 0; n < 25; n += 1) {
    await chat.channel(`c${n}`, ["alice", "bob"]);
    const root = await chat.send(`c${n}`, "bob");
    await chat.send(`c${n}`, "alice", { thread_id: root });
    await chat.send(`c${n}`, "alice");
  }
  const rs = device(t, "bob", small.url);

  await rs.connect();

  assert.deepEqual(rs.totals, { unread: 25, mentions: 0, channels: 25 });
  assert.deepEqual(rs.threadTotals, { unread: 25, threads: 25 });
});

test("a tap of many messages is told page by page", async (t) => {
  const small = await Service.start({ MAX_PAGE: 10 });
  t.after(() => small.close());
  const chat = new Backend(small);
  await chat.channel("general", ["alice", "bob"]);
  const sent = [];
  for (let n = 0; n < 25; n += 1) sent.push(await chat.send("general", "alice"));
  const rs = device(t, "bob", small.url);
  await rs.connect();

  const shown = [];
  let cursor = null;
  do {
    const page = await rs.tap({ cursor });
    assert.equal(page.senders, 1);
    shown.push(...page.by_sender.flatMap(({ messages }) => messages.map(({ id }) => id)));
    ({ cursor } = page);
  } while (cursor);

  assert.deepEqual(shown.sort(), sent.sort());
  assert.equal(rs.badge.senders, 0);
});

test("a closed client stays closed", async (t) => {
  const { bob, general } = await story();
  const rs = device(t, bob, service.url);
  await rs.connect();
  rs.disconnect();
  const waiting = rs.markRead(general);

  rs.close();

  assert.equal(rs.state, "closed");
  await assert.rejects(waiting, { code: "closed" });
  await assert.rejects(rs.connect(), { code: "closed" });
  await assert.rejects(rs.markRead(general), { code: "closed" });
});

test("connect() tells whoever waits that it was called off", async (t) => {
  const { bob } = await story();
  const rs = device(t, bob, service.url);

  const connecting = rs.connect();
  rs.disconnect();

  await assert.rejects(connecting, { code: "disconnected" });
});

test("a client over its rate slows down, and all that it asked for is done, in order", async (t) => {
  const strict = await Service.start({ RATE_LIMIT: 20 });
  t.after(() => strict.close());
  const chat = new Backend(strict);
  await chat.channel("general", ["alice", "bob"]);
  const sent = [];
  for (let n = 0; n < 40; n++) sent.push(await chat.send("general", "alice"));
  const rs = device(t, "bob", strict.url, hurry);
  await rs.connect();
  const offline = next(rs, "state", (state) => state === "offline");

  const asked = [];
  for (const id of sent) asked.push(rs.markRead("general", { upTo: id }), rs.markUnread("general", id));
  asked.push(...sent.map((id) => rs.markRead("general", { messages: [id] })));
  await Promise.all(asked);

  await offline; // the rate was met
  await until("it is live again", () => rs.state === "live");
  assert.equal((await chat.login("bob")).totals.unread, 0);
  assert.equal(rs.unread("general").unread, 0);
});

test("a device too many waits until there is room", async (t) => {
  const strict = await Service.start({ MAX_DEVICES: 1 });
  t.after(() => strict.close());
  await new Backend(strict).channel("general", ["alice", "bob"]);
  const [first, second] = [device(t, "bob", strict.url, hurry), device(t, "bob", strict.url, hurry)];
  await first.connect();

  const refused = next(second, "error", ({ code }) => code === "too_many_devices");
  const connected = second.connect();
  await refused;
  first.disconnect();

  await connected;
  assert.equal(second.state, "live");
});
