/**
 * The chat product's own store of messages, as far as this page needs one. Readstate keeps no history for
 * clients: a real product has it already. All devices of the page read from here what they have been told of.
 */

const keyOf = (channel, id) => `${channel}\n${id}`;

export class Store {
  #messages = new Map();

  /** @param messages those that were there before the page */
  constructor(messages) {
    for (const message of messages) this.add(message);
  }

  /** Take what is known of a message; what was known before stays where this says nothing. */
  add(message) {
    const key = keyOf(message.channel_id, message.id);
    const before = this.#messages.get(key) ?? { seq: null, thread_id: null, thread_seq: null, deleted: false };
    const told = Object.entries(message).filter(([, value]) => value !== undefined && value !== null);
    this.#messages.set(key, { ...before, ...Object.fromEntries(told) });
  }

  /** A message as an event tells of it: its text may be cut, so a text that is known stays. */
  addFrame(frame) {
    const known = this.get(frame.channel_id, frame.message_id);
    this.add({
      channel_id: frame.channel_id,
      id: frame.message_id,
      sender_id: frame.sender_id,
      at: frame.at,
      seq: frame.seq,
      thread_id: frame.thread_id,
      thread_seq: frame.thread_seq,
      silent: frame.silent,
      text: known?.text ?? frame.preview ?? "",
    });
  }

  get(channel, id) {
    return this.#messages.get(keyOf(channel, id));
  }

  remove(channel, id) {
    this.add({ channel_id: channel, id, deleted: true });
  }

  all() {
    return [...this.#messages.values()];
  }

  /** What stands in a channel, in its order. */
  channel(channel) {
    const found = this.all().filter((message) => message.channel_id === channel && message.seq !== null);
    return found.sort((a, b) => a.seq - b.seq);
  }

  /** The replies under a message, in their order. */
  thread(channel, root) {
    const found = this.all().filter(
      (message) => message.channel_id === channel && message.thread_id === root && message.thread_seq !== null,
    );
    return found.sort((a, b) => a.thread_seq - b.thread_seq);
  }
}
