/**
 * The read state of one user, as a client keeps it: counts by channel, followed threads, the badge.
 *
 * It is a fold of a bulk sync and the frames that follow it. The service sends every figure exact at its place
 * in the order of frames, so counting is simple: a figure replaces, a `message.new` with `counts` adds one.
 *
 * One thing needs more care, *reads under way*: whoever opens a channel sees 0 at once. What the service has told
 * stays untouched below that, so a refused read brings the true figures back, and an answer needs no undoing.
 */

const FIGURES = ["unread", "label", "has_unread", "mentions", "exact", "first_unread", "last_read", "latest", "muted"];
const PERHAPS = ["reason", "archived"];
const NONE = { unread: 0, mentions: 0, channels: 0 };

/** A channel in which nothing is known to be unread. */
export function nothing(channelId) {
  return {
    channel_id: channelId,
    unread: 0,
    label: "",
    has_unread: false,
    mentions: 0,
    exact: true,
    first_unread: null,
    last_read: null,
    latest: null,
    muted: false,
  };
}

/** The key of a thread: ids are printable, so a line break cannot be in one. */
export function threadKey(channelId, threadId) {
  return `${channelId}\n${threadId}`;
}

/** What `U` says, without what its frame says besides. */
function figures(from) {
  const entry = { channel_id: from.channel_id };
  for (const name of FIGURES) entry[name] = from[name];
  for (const name of PERHAPS) if (from[name]) entry[name] = from[name];
  return entry;
}

/** The same channel with everything read. */
function cleared({ reason, ...entry }) {
  return { ...entry, unread: 0, label: "", has_unread: false, mentions: 0, exact: true, first_unread: null };
}

function share(entry) {
  if (!entry?.has_unread || entry.muted || entry.archived) return NONE;
  return { unread: entry.unread, mentions: entry.mentions, channels: 1 };
}

export class Counts {
  channels = new Map();
  totals = { ...NONE };
  threads = new Map();
  threadTotals = { unread: 0, threads: 0 };
  badge = { senders: 0, label: "" };
  /** The highest number that a label shows. */
  cap = 99;

  /** channel -> {told: what the service said, newest: seq, epoch} */
  #rooms = new Map();
  /** channel -> how many reads of all of it are under way */
  #held = new Map();
  #changed;

  /** @param {(what: string, channelId?: string) => void} changed called after every change */
  constructor(changed) {
    this.#changed = changed;
  }

  // ---------------------------------------------------------------- what the service says

  /** Start anew from a bulk sync. */
  reset(channels, threads) {
    this.#rooms.clear();
    this.channels.clear();
    this.totals = { ...NONE };
    for (const row of channels) this.#show(row.channel_id, this.#tell(figures(row)));
    this.threads.clear();
    for (const row of threads) this.threads.set(threadKey(row.channel_id, row.thread_id), row);
    this.#sumThreads();
    this.#changed("sync");
  }

  /**
   * Take a frame in.
   * @returns whether it is news: false for a message that was here already
   */
  apply(frame) {
    const { channel_id: id } = frame;
    switch (frame.type) {
      case "message.new":
        return this.#message(frame);
      case "unread.updated":
        this.#put(id, this.#tell(figures(frame)));
        break;
      case "read_pointer.updated": {
        const { last_read_id, last_read_seq, last_read_at, epoch } = frame;
        this.read(id, { ...frame, last_read: { id: last_read_id, seq: last_read_seq, at: last_read_at, epoch } });
        break;
      }
      case "channel.removed":
        this.#remove(id);
        break;
      case "thread.updated":
        this.#thread(frame);
        break;
      case "badge.updated":
        this.badge = { senders: frame.senders, label: frame.label };
        this.#changed("badge");
    }
    return true;
  }

  /** Figures after a read, or after a mark-unread: from an `ack`, or of another device. */
  read(id, answer) {
    const room = this.#room(id);
    room.told = figures(answer);
    this.#put(id, room);
  }

  /** A channel was opened: it stands as `after` says. */
  opened(id, { after, ...before }) {
    this.read(id, after);
    return before;
  }

  /** Figures of a thread after it was read here. */
  threadRead(channelId, threadId, { last_read, unread, label }) {
    const known = this.threads.get(threadKey(channelId, threadId));
    if (known) this.#thread({ ...known, last_read, unread, label });
  }

  /** The badge was tapped. */
  tapped() {
    this.badge = { senders: 0, label: "" };
    this.#changed("badge");
  }

  // ---------------------------------------------------------------- reads under way

  /** Show a channel as read until `release`. */
  hold(id) {
    this.#held.set(id, (this.#held.get(id) ?? 0) + 1);
    if (this.#rooms.has(id)) this.#put(id, this.#rooms.get(id));
  }

  /** A read is answered; `quietly` if figures follow at once. */
  release(id, quietly = false) {
    const left = (this.#held.get(id) ?? 0) - 1;
    if (left > 0) this.#held.set(id, left);
    else this.#held.delete(id);
    if (!quietly && this.#rooms.has(id)) this.#put(id, this.#rooms.get(id));
  }

  /** The newest seq known in a channel; undefined if none is. */
  newest(id) {
    return this.#rooms.get(id)?.newest || undefined;
  }

  /** The epoch of the user's pointer in a channel, as last seen. */
  epoch(id) {
    const room = this.#rooms.get(id);
    return room?.told.last_read?.epoch ?? room?.epoch;
  }

  // ---------------------------------------------------------------- channels

  /** What is known of a channel. Of one that no sync has named, only the epoch of the pointer is. */
  #room(id) {
    if (!this.#rooms.has(id)) this.#rooms.set(id, { told: nothing(id), newest: 0, epoch: undefined });
    return this.#rooms.get(id);
  }

  /** Everything about a channel was told. */
  #tell(entry) {
    const room = this.#room(entry.channel_id);
    room.told = entry;
    room.newest = Math.max(room.newest, entry.latest?.seq ?? 0);
    return room;
  }

  #message(frame) {
    const { channel_id: id, message_id, seq, at, sender_id, preview } = frame;
    if (seq === null || seq === undefined) return true; // a reply in its thread only
    const room = this.#room(id);
    if (seq <= room.newest) return false;
    room.newest = seq;
    room.epoch = frame.epoch ?? room.epoch;
    const place = { id: message_id, seq, at };
    const told = { ...room.told, latest: { ...place, sender_id, preview } };
    if (frame.counts) {
      told.unread += 1;
      told.label = this.#label(told.unread);
      told.has_unread = true;
      told.mentions += frame.mentions_me ? 1 : 0;
      told.first_unread ??= place;
    }
    room.told = told;
    this.#put(id, room);
    return true;
  }

  #remove(id) {
    const threads = [...this.threads].filter(([, thread]) => thread.channel_id === id);
    for (const [key] of threads) this.threads.delete(key);
    this.#sumThreads();
    this.#rooms.delete(id);
    this.#show(id, null);
    this.#changed("channel", id);
    if (threads.length > 0) this.#changed("thread", id);
  }

  #put(id, room) {
    this.#show(id, room);
    this.#changed("channel", id);
  }

  /** Bring what is known to the map that everybody reads, and to the totals. */
  #show(id, room) {
    const before = share(this.channels.get(id));
    if (room) this.channels.set(id, this.#held.has(id) ? cleared(room.told) : room.told);
    else this.channels.delete(id);
    const after = share(this.channels.get(id));
    this.totals = {
      unread: this.totals.unread + after.unread - before.unread,
      mentions: this.totals.mentions + after.mentions - before.mentions,
      channels: this.totals.channels + after.channels - before.channels,
    };
  }

  #label(count) {
    return count === 0 ? "" : count > this.cap ? `${this.cap}+` : `${count}`;
  }

  // ---------------------------------------------------------------- threads

  #thread(frame) {
    const { thread_id, channel_id, unread, label, latest, last_read } = frame;
    const key = threadKey(channel_id, thread_id);
    if (frame.followed === false) this.threads.delete(key);
    else this.threads.set(key, { thread_id, channel_id, unread, label, latest, last_read });
    this.#sumThreads();
    this.#changed("thread", channel_id);
  }

  #sumThreads() {
    const counts = [...this.threads.values()].map((thread) => thread.unread).filter((unread) => unread > 0);
    this.threadTotals = { unread: counts.reduce((sum, unread) => sum + unread, 0), threads: counts.length };
  }
}
