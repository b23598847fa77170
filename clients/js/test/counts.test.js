/** What users see: counts, focus, several devices, preferences, threads and the badge, against a real service. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { agrees, Backend, device, next, Service, tokenFor, until } from "./harness.js";

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
  const [alice, bob, carol, general, side] = ["alice", "bob", "carol", "general", "side"].map((name) => `${name}${n}`);
  await backend.channel(general, [alice, bob, carol]);
  await backend.channel(side, [alice, bob, carol]);
  return { alice, bob, carol, general, side };
}

async function live(t, user, options) {
  const rs = device(t, user, service.url, options);
  await rs.connect();
  return rs;
}

test("a client starts with what is unread, and is live then", async (t) => {
  const { alice, bob, general } = await story();
  const first = await backend.send(general, alice, { mentions: [bob] });
  await backend.send(general, alice);

  const rs = await live(t, bob);

  assert.equal(rs.state, "live");
  assert.equal(rs.user, bob);
  assert.equal(rs.unread(general).label, "2");
  assert.equal(rs.unread(general).first_unread.id, first);
  assert.deepEqual(rs.totals, { unread: 2, mentions: 1, channels: 1 });
  await agrees(backend, rs);
});

test("messages count as they come, and all figures with them", async (t) => {
  const { alice, bob, carol, general, side } = await story();
  const rs = await live(t, bob);
  const changes = [];
  rs.on("change", (change) => changes.push(change));

  await backend.send(general, alice);
  await backend.send(general, carol, { mentions: ["@channel"] });
  await backend.send(side, alice, { silent: true });
  await backend.send(side, bob);
  await rs.settled();

  assert.equal(rs.unread(general).unread, 2);
  assert.equal(rs.unread(general).mentions, 1);
  assert.equal(rs.unread(side).unread, 0);
  assert.deepEqual(rs.totals, { unread: 2, mentions: 1, channels: 1 });
  assert.ok(changes.some(({ what, channel_id }) => what === "channel" && channel_id === general));
  await agrees(backend, rs);
});

test("more than the cap is shown with a plus", async (t) => {
  const { alice, bob, general } = await story();
  const rs = await live(t, bob);

  const messages = Array.from({ length: 120 }, () => ({ channel_id: general, sender_id: alice, text: "…" }));
  await backend.call("POST", "/v1/messages", { messages });
  await rs.settled();

  assert.equal(rs.unread(general).unread, 120);
  assert.equal(rs.unread(general).label, "99+");
  await agrees(backend, rs);
});

test("a listener that is taken off hears nothing more", async (t) => {
  const { alice, bob, general } = await story();
  const rs = await live(t, bob);
  const heard = [];
  const off = rs.on("message.new", ({ message_id }) => heard.push(message_id));

  const first = await backend.send(general, alice);
  await rs.settled();
  off();
  await backend.send(general, alice);
  await rs.settled();

  assert.deepEqual(heard, [first]);
});

test("opening a channel reads it, and what comes is read at once on all devices", async (t) => {
  const { alice, bob, general } = await story();
  const first = await backend.send(general, alice);
  const phone = await live(t, bob, { device: "phone" });
  const laptop = await live(t, bob);

  const opened = phone.focus(general);
  assert.equal(phone.unread(general).unread, 0, "it is 0 at once");
  const unreadBefore = await opened;
  assert.equal(unreadBefore.unread, 1);
  assert.equal(unreadBefore.first_unread.id, first);
  await until("the laptop knows", () => laptop.unread(general).unread === 0);

  await backend.send(general, alice);
  await Promise.all([phone.settled(), laptop.settled()]);
  assert.equal(phone.unread(general).unread, 0);
  assert.equal(laptop.unread(general).unread, 0);

  await phone.blur();
  await backend.send(general, alice);
  await Promise.all([phone.settled(), laptop.settled()]);
  assert.equal(phone.unread(general).unread, 1);
  assert.equal(laptop.unread(general).unread, 1);
  await agrees(backend, phone);
  await agrees(backend, laptop);
});

test("a channel can be opened without reading it", async (t) => {
  const { alice, bob, general } = await story();
  await backend.send(general, alice);
  const rs = await live(t, bob);

  const unreadBefore = await rs.focus(general, { read: false });

  assert.equal(unreadBefore.unread, 1);
  assert.equal(rs.unread(general).unread, 1);
  await agrees(backend, rs);
});

test("a channel that cannot be opened keeps its figures", async (t) => {
  const { alice, bob, general } = await story();
  await backend.send(general, alice);
  const rs = await live(t, bob);

  const opened = rs.focus("no-such-channel");
  await assert.rejects(opened, { name: "ReadstateError" });

  await agrees(backend, rs);
});

test("focus follows the page: what comes while nobody looks is unread", async (t) => {
  const { alice, bob, general } = await story();
  const page = Object.assign(new EventTarget(), { visibilityState: "visible" });
  const show = (visibilityState) => {
    page.visibilityState = visibilityState;
    page.dispatchEvent(new Event("visibilitychange"));
  };
  const rs = await live(t, bob, { page });
  await rs.focus(general);

  show("hidden");
  await rs.settled();
  const missed = await backend.send(general, alice);
  await rs.settled();
  assert.equal(rs.unread(general).unread, 1);

  const again = next(rs, "focus");
  show("visible");
  assert.equal((await again).before.first_unread.id, missed);
  assert.equal(rs.unread(general).unread, 0);
  await agrees(backend, rs);
});

test("a channel that is opened in a hidden page is read when the page is shown", async (t) => {
  const { alice, bob, general } = await story();
  await backend.send(general, alice);
  const page = Object.assign(new EventTarget(), { visibilityState: "hidden" });
  const rs = await live(t, bob, { page });

  await assert.rejects(rs.focus("no-such-channel"), { code: "forbidden" });
  assert.equal((await rs.focus(general)).unread, 1);
  await rs.settled();
  assert.equal(rs.unread(general).unread, 1);

  const again = next(rs, "focus");
  page.visibilityState = "visible";
  page.dispatchEvent(new Event("visibilitychange"));
  await again;
  assert.equal(rs.unread(general).unread, 0);
  await agrees(backend, rs);
});

test("a read on one device reaches the other, wherever it stops", async (t) => {
  const { alice, bob, general } = await story();
  const [, second, third] = [
    await backend.send(general, alice),
    await backend.send(general, alice),
    await backend.send(general, alice),
  ];
  const phone = await live(t, bob, { device: "phone" });
  const laptop = await live(t, bob);

  const result = await phone.markRead(general, { upTo: second });

  assert.equal(result.changed, true);
  assert.equal(result.unread, 1);
  assert.equal(phone.unread(general).unread, 1);
  await agrees(backend, phone);
  await agrees(backend, laptop);
  assert.equal(laptop.unread(general).first_unread.id, third);

  await laptop.markRead(general, { messages: [third] });
  await agrees(backend, phone);
  await agrees(backend, laptop);
  assert.equal(phone.totals.unread, 0);
});

test("a read by HTTP reaches the devices too", async (t) => {
  const { alice, bob, general } = await story();
  await backend.send(general, alice);
  const rs = await live(t, bob);

  await backend.read(bob, general);

  await until("it is read", () => rs.unread(general).unread === 0);
  await agrees(backend, rs);
});

test("reading up to a seq and up to a time", async (t) => {
  const { alice, bob, general } = await story();
  for (let n = 0; n < 5; n += 1) await backend.send(general, alice);
  const rs = await live(t, bob);

  assert.equal((await rs.markRead(general, { upToSeq: 2 })).unread, 3);
  await agrees(backend, rs);
  assert.equal((await rs.markRead(general, { upToTime: rs.unread(general).latest.at - 1 })).unread, 1);
  await agrees(backend, rs);
  assert.equal((await rs.markRead(general)).unread, 0);
  await agrees(backend, rs);
});

test("marking unread stands against a read that comes late", async (t) => {
  const { alice, bob, general } = await story();
  const first = await backend.send(general, alice);
  await backend.send(general, alice);
  const phone = await live(t, bob, { device: "phone" });
  const laptop = await live(t, bob);
  await phone.markRead(general);
  await laptop.settled();

  laptop.disconnect();
  const late = laptop.markRead(general);
  await phone.markUnread(general, first);
  await laptop.connect();

  assert.equal((await late).changed, false);
  assert.equal(phone.unread(general).unread, 2);
  assert.equal(phone.unread(general).first_unread.id, first);
  await agrees(backend, phone);
  await agrees(backend, laptop);
});

for (const aside of [{ muted: true }, { archived: true }]) {
  test(`what is ${Object.keys(aside)[0]} counts as it should when it is marked unread, here and elsewhere`, async (t) => {
    const { alice, bob, general } = await story();
    const first = await backend.send(general, alice);
    await backend.read(bob, general);
    await backend.prefer(bob, general, aside);
    const phone = await live(t, bob, { device: "phone" });
    const laptop = await live(t, bob);

    await phone.markUnread(general, first);
    await laptop.settled();

    assert.equal(phone.unread(general).unread, 1);
    await agrees(backend, phone);
    await agrees(backend, laptop);
  });
}

test("marking unread ends the focus, also over a reconnect", async (t) => {
  const { alice, bob, general } = await story();
  const first = await backend.send(general, alice);
  const rs = await live(t, bob);
  await rs.focus(general);

  await rs.markUnread(general, first);
  await backend.send(general, alice);
  await rs.settled();
  assert.equal(rs.unread(general).unread, 2);

  rs.disconnect();
  await rs.connect();
  assert.equal(rs.unread(general).unread, 2);
  await agrees(backend, rs);
});

test("a read that the service refuses takes nothing away", async (t) => {
  const { alice, bob, general } = await story();
  await backend.send(general, alice);
  const rs = await live(t, bob);

  await assert.rejects(rs.markRead(general, { upTo: "no-such-message" }), { code: "message_not_found" });
  await assert.rejects(rs.markUnread(general, "no-such-message"), { code: "message_not_found", retry: false });

  assert.equal(rs.unread(general).unread, 1);
  await agrees(backend, rs);
});

test("a muted channel keeps its count and leaves the totals", async (t) => {
  const { alice, bob, general, side } = await story();
  await backend.send(general, alice);
  await backend.send(side, alice);
  const rs = await live(t, bob);

  await backend.prefer(bob, side, { muted: true });
  await until("it is muted", () => rs.unread(side).muted);
  await backend.send(side, alice);
  await rs.settled();

  assert.equal(rs.unread(side).unread, 2);
  assert.deepEqual(rs.totals, { unread: 1, mentions: 0, channels: 1 });
  await agrees(backend, rs);

  await backend.prefer(bob, side, { muted: false });
  await until("it is not muted", () => !rs.unread(side).muted);
  assert.equal(rs.totals.unread, 3);
  await agrees(backend, rs);
});

test("a channel that was muted before stays out of the totals when it is first heard of", async (t) => {
  const { alice, bob, side } = await story();
  await backend.prefer(bob, side, { muted: true });
  const rs = await live(t, bob);

  await backend.send(side, alice);
  await rs.settled();

  assert.equal(rs.unread(side).unread, 1);
  assert.equal(rs.unread(side).muted, true);
  assert.deepEqual(rs.totals, { unread: 0, mentions: 0, channels: 0 });
  await agrees(backend, rs);
});

test("a mute that ends by itself brings the channel back", async (t) => {
  const { alice, bob, side } = await story();
  await backend.send(side, alice);
  const rs = await live(t, bob);
  const muted = next(rs, "unread.updated", (event) => event.muted);
  await backend.prefer(bob, side, { muted: Date.now() + 3_000 });
  await muted;

  await until("it is not muted", () => !rs.unread(side).muted);

  assert.equal(rs.totals.unread, 1);
  await agrees(backend, rs);
});

for (const count of ["mentions", "none"]) {
  test(`who counts ${count} sees the dot all the same`, async (t) => {
    const { alice, bob, general } = await story();
    await backend.prefer(bob, general, { count });
    const rs = await live(t, bob);

    const first = await backend.send(general, alice);
    await backend.send(general, alice, { mentions: [bob] });
    await rs.settled();

    assert.equal(rs.unread(general).unread, count === "none" ? 0 : 1);
    assert.equal(rs.unread(general).has_unread, true);
    await agrees(backend, rs);

    await rs.markRead(general, { upTo: first });
    await agrees(backend, rs);
    await rs.markRead(general);
    await agrees(backend, rs);
  });
}

test("deletes and edits change counts that stand", async (t) => {
  const { alice, bob, general } = await story();
  const [first, second] = [
    await backend.send(general, alice, { mentions: [bob] }),
    await backend.send(general, alice, { mentions: [bob] }),
  ];
  const rs = await live(t, bob);

  await backend.call("DELETE", `/v1/channels/${general}/messages/${first}`);
  await until("one is left", () => rs.unread(general).unread === 1);
  await backend.call("PATCH", `/v1/channels/${general}/messages/${second}`, { mentions: [] });
  await until("nobody is mentioned", () => rs.unread(general).mentions === 0);

  assert.equal(rs.unread(general).first_unread.id, second);
  await agrees(backend, rs);
});

test("joining, leaving and archiving", async (t) => {
  const { alice, bob, general } = await story();
  const open = `open-${general}`;
  await backend.channel(open, [alice]);
  await backend.send(open, alice);
  await backend.send(open, alice);
  const rs = await live(t, bob);

  const joined = next(rs, "channel.updated", ({ channel_id }) => channel_id === open);
  await backend.members(open, { add: [bob], history: "unread" });
  assert.equal((await joined).conversation.unread, 2);
  await agrees(backend, rs);

  await backend.channel(open, [], { archived: true });
  await until("it leaves the totals", () => rs.totals.unread === 0);
  await agrees(backend, rs);
  await backend.channel(open, [], { archived: false });
  await until("it is back", () => rs.totals.unread === 2);
  await agrees(backend, rs);

  const left = next(rs, "channel.removed");
  await backend.members(open, { remove: [bob] });
  await left;
  assert.equal(rs.channels.has(open), false);
  await agrees(backend, rs);
});

test("threads are followed, counted and read apart from their channel", async (t) => {
  const { alice, bob, carol, general } = await story();
  const root = await backend.send(general, bob);
  const phone = await live(t, bob, { device: "phone" });
  const laptop = await live(t, bob);

  const reply = await backend.send(general, alice, { thread_id: root });
  await backend.send(general, carol, { thread_id: root });
  await phone.settled();
  assert.equal(phone.thread(general, root).unread, 2);
  assert.deepEqual(phone.threadTotals, { unread: 2, threads: 1 });
  assert.equal(phone.unread(general).unread, 0);
  await agrees(backend, phone);

  assert.equal((await phone.markThreadRead(general, root, { upTo: reply })).unread, 1);
  await agrees(backend, phone);
  await agrees(backend, laptop);
  await laptop.markThreadRead(general, root);
  await agrees(backend, phone);
  await agrees(backend, laptop);

  await phone.http("DELETE", `/v1/users/me/channels/${general}/threads/${root}/follow`);
  await until("it is followed no more", () => !laptop.thread(general, root));
  await agrees(backend, laptop);
});

test("whoever leaves a channel loses its threads, and finds them again", async (t) => {
  const { alice, bob, general } = await story();
  const root = await backend.send(general, bob);
  await backend.send(general, alice, { thread_id: root });
  const rs = await live(t, bob);
  assert.equal(rs.threads.size, 1);

  await backend.members(general, { remove: [bob] });
  await until("it is gone", () => rs.threads.size === 0);
  await agrees(backend, rs);
  await backend.members(general, { add: [bob] });
  await until("it is back", () => rs.threads.size === 1);
  await agrees(backend, rs);
});

test("the badge counts people who wrote while nobody was there, and a tap shows them", async (t) => {
  const { alice, bob, carol, general } = await story();
  const phone = device(t, bob, service.url, { device: "phone" });
  await backend.send(general, alice);
  await backend.send(general, alice);
  await backend.send(general, carol);
  await phone.connect();
  const laptop = await live(t, bob);
  assert.deepEqual(phone.badge, { senders: 2, label: "2" });

  const { senders, by_sender } = await phone.tap();

  assert.equal(senders, 2);
  assert.deepEqual(by_sender.map(({ sender_id, messages }) => [sender_id, messages.length]), [[carol, 1], [alice, 2]]);
  assert.equal(phone.badge.senders, 0);
  await until("the laptop knows", () => laptop.badge.senders === 0);
  await agrees(backend, phone);
  await agrees(backend, laptop);
});

test("receipts of others are told", async (t) => {
  const { alice, bob, general } = await story();
  const message = await backend.send(general, bob);
  const rs = await live(t, bob);
  const receipt = next(rs, "receipt.updated");

  await backend.read(alice, general);

  const { channel_id, user_id, last_read_id } = await receipt;
  assert.deepEqual([channel_id, user_id, last_read_id], [general, alice, message]);
});

test("the rest of the API is called as the user", async (t) => {
  const { bob, general } = await story();
  const rs = await live(t, bob);

  const { conversations } = await rs.http("GET", "/v1/users/me/inbox");
  assert.ok(conversations.some(({ channel_id }) => channel_id === general));
  await assert.rejects(rs.http("GET", "/v1/users/somebody/inbox"), { code: "forbidden", status: 403, retry: false });
  await assert.rejects(rs.http("PUT", `/v1/users/me/channels/${general}/preferences`, { count: "some" }), {
    status: 422,
    field: "count",
  });
});

test("a token that has run out is renewed for HTTP as well", async (t) => {
  const { bob } = await story();
  const tokens = [tokenFor(bob, { ttl: -60 }), tokenFor(bob)];
  const rs = device(t, bob, service.url, { getToken: async () => tokens.shift() });

  await rs.http("GET", "/v1/users/me/inbox");

  assert.equal(tokens.length, 0);
});
