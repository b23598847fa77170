/** The browser client of Readstate: unread counts, threads and the badge of one user, kept live. */

export type State = "idle" | "connecting" | "live" | "offline" | "closed";

/** Where a message stands. */
export interface Place {
  id: string | null;
  seq: number;
  /** Milliseconds since 1970. */
  at: number | null;
}

/** The read pointer; the epoch is raised by every mark-unread. */
export interface LastRead extends Place {
  epoch: number;
}

/** The newest message that is not deleted. */
export interface Latest {
  id: string;
  seq: number;
  at: number;
  sender_id: string;
  preview: string | null;
}

/** What is unread in a channel (`U` of the HTTP API). */
export interface Unread {
  channel_id: string;
  unread: number;
  /** The number as a badge shows it: "", "1" … "99", "99+". */
  label: string;
  /** The dot: whether anything at all is unread, whatever the `count` preference says. */
  has_unread: boolean;
  mentions: number;
  exact: boolean;
  reason?: "capped" | "stale";
  /** Where the red line goes. */
  first_unread: Place | null;
  /** Null as long as it is not known. */
  last_read: LastRead | null;
  latest: Latest | null;
  muted: boolean;
  /** There if the channel takes no messages any more, and is left out of the totals. */
  archived?: true;
}

export interface Totals {
  unread: number;
  mentions: number;
  /** How many channels have anything unread. */
  channels: number;
}

export interface Thread {
  thread_id: string;
  channel_id: string;
  unread: number;
  label: string;
  /** The newest reply; its `seq` is its place in the thread. */
  latest: Latest | null;
  last_read: LastRead;
  /** There if the number is not exact. */
  exact?: false;
  reason?: "capped" | "stale";
}

export interface ThreadTotals {
  unread: number;
  threads: number;
}

/** How many different people wrote while no device of the user was connected. */
export interface Badge {
  senders: number;
  label: string;
}

/** Where the pointer stands after a read or a mark-unread, and what is left. */
export interface ReadResult {
  last_read: LastRead;
  unread: number;
  label: string;
  changed: boolean;
  /** Not for threads, which have none of these. */
  channel_id?: string;
  has_unread?: boolean;
  exact?: boolean;
  reason?: "capped" | "stale";
  mentions?: number;
  first_unread?: Place | null;
  latest?: Latest | null;
  muted?: boolean;
  archived?: boolean;
}

export interface Message {
  id: string;
  channel_id: string;
  seq: number | null;
  sender_id: string;
  at: number;
  sent_at: number | null;
  text: string | null;
  preview: string | null;
  thread_id: string | null;
  thread_seq: number | null;
  mentions: string[];
  silent: boolean;
  deleted: boolean;
}

export interface Tap {
  senders: number;
  tapped_at: number;
  by_sender: { sender_id: string; messages: Message[] }[];
  /** Where the next page begins; null when all is told. */
  cursor: string | null;
}

// ---------------------------------------------------------------- frames

/** Every event carries the cursor that a device comes back with; the client keeps it. */
export interface Event {
  resume: string;
}

export interface Ready {
  type: "ready";
  user_id: string;
  connection_id: string;
  instance_id: string;
  server_time: number;
  version: string;
  expires_at: number | null;
  display_cap: number;
  resume: string;
}

export interface MessageNew extends Event {
  type: "message.new";
  channel_id: string;
  message_id: string;
  /** Null for a reply in its thread only. */
  seq: number | null;
  sender_id: string;
  at: number;
  preview: string | null;
  /** Whether it adds one to this user's unread. */
  counts: boolean;
  mentions_me: boolean;
  silent: boolean;
  /** The user's epoch in the channel. */
  epoch?: number;
  thread_id?: string;
  thread_seq?: number;
}

export interface ReadPointerUpdated extends Event {
  type: "read_pointer.updated";
  channel_id: string;
  last_read_id: string | null;
  last_read_seq: number;
  last_read_at: number | null;
  epoch: number;
  unread: number;
  label: string;
  has_unread: boolean;
  exact: boolean;
  reason?: "capped" | "stale";
  mentions: number;
  first_unread: Place | null;
  latest: Latest | null;
  muted: boolean;
  archived?: boolean;
  instance_id: string;
}

export interface UnreadUpdated extends Event, Unread {
  type: "unread.updated";
}

/** A row of the inbox. */
export interface Conversation {
  channel_id: string;
  type: "direct" | "group" | "channel";
  name: string | null;
  avatar: string | null;
  peer_id: string | null;
  last_message: Latest | null;
  unread: number;
  label: string;
  has_unread: boolean;
  mentions: number;
  muted: boolean;
  pinned: boolean;
  /** There if the numbers are not exact. */
  exact?: false;
  reason?: "capped" | "stale";
}

export interface Preferences {
  muted: boolean;
  muted_until?: number | null;
  count: "all" | "mentions" | "none";
  receipts: "public" | "private";
  pinned: boolean;
  archived: boolean;
}

export interface ChannelUpdated extends Event {
  type: "channel.updated";
  channel_id: string;
  conversation: Conversation;
  preferences: Preferences;
}

export interface ChannelRemoved extends Event {
  type: "channel.removed";
  channel_id: string;
}

export interface ReceiptUpdated extends Event {
  type: "receipt.updated";
  channel_id: string;
  user_id: string;
  last_read_id: string | null;
  last_read_seq: number;
  read_at: number;
}

export interface BadgeUpdated extends Event, Badge {
  type: "badge.updated";
}

export interface ThreadUpdated extends Event, Thread {
  type: "thread.updated";
  /** False: it is followed no more. */
  followed?: boolean;
}

export interface SyncRequired extends Event {
  type: "sync.required";
  reason: string;
}

export interface Ack {
  type: "ack";
  ref: string;
  [field: string]: unknown;
}

export interface Pong {
  type: "pong";
  ref?: string;
  server_time: number;
}

export interface ErrorFrame {
  type: "error";
  ref?: string;
  code: string;
  detail: string;
  retry: boolean;
  field?: string;
}

export type Frame =
  | Ready
  | MessageNew
  | ReadPointerUpdated
  | UnreadUpdated
  | ChannelUpdated
  | ChannelRemoved
  | ReceiptUpdated
  | BadgeUpdated
  | ThreadUpdated
  | SyncRequired
  | Ack
  | Pong
  | ErrorFrame;

// ---------------------------------------------------------------- the client

/** Something that is known here changed. */
export interface Change {
  what: "channel" | "thread" | "badge" | "sync" | "state";
  channel_id?: string;
}

/** The open channel was opened again, because the page or the connection came back. */
export interface FocusAgain {
  channel_id: string;
  before: Unread;
}

type FrameByType = { [F in Exclude<Frame, ErrorFrame> as F["type"]]: F };

export interface Events extends FrameByType {
  /** What is wrong, and nobody waits for it: a token that was refused, a sync that failed. */
  error: Error;
  change: Change;
  state: State;
  focus: FocusAgain;
  "*": Frame;
}

export interface Options {
  /** Base of the service; a path is kept. Default: the origin of the page. */
  url?: string;
  /** Gives a token of the user: asked at every connect, and before the token expires. */
  getToken: () => string | Promise<string>;
  /** The name of this device. Default: "web". */
  device?: string;
  /** Focus follows its visibility. Default: the document, where there is one; null: focus stands whatever is seen. */
  page?: Pick<Document, "visibilityState" | "addEventListener" | "removeEventListener"> | null;
  WebSocket?: typeof WebSocket;
  fetch?: typeof fetch;
  random?: () => number;
  setTimeout?: (run: () => void, milliseconds: number) => unknown;
  clearTimeout?: (handle: any) => void;
}

/** At most one of these; none: everything. */
export type ReadTarget =
  | { upTo?: undefined; upToSeq?: undefined; upToTime?: undefined; messages?: undefined }
  | { upTo: string }
  | { upToSeq: number }
  | { upToTime: number | string }
  | { messages: string[] };

export class ReadstateError extends Error {
  /** For programs. */
  readonly code: string;
  /** For people. */
  readonly detail: string;
  /** The HTTP status, where there was one. */
  readonly status?: number;
  /** The field that is wrong. */
  readonly field?: string;
  /** Whether the same may succeed later. */
  readonly retry: boolean;
}

export class Readstate {
  constructor(options: Options);

  readonly state: State;
  /** Known since the first `ready`. */
  readonly user: string | null;
  /** A channel that is not in it has nothing unread, as far as is known. Entries are replaced, never changed. */
  readonly channels: ReadonlyMap<string, Unread>;
  readonly totals: Totals;
  readonly threads: ReadonlyMap<string, Thread>;
  readonly threadTotals: ThreadTotals;
  readonly badge: Badge;

  unread(channelId: string): Unread;
  thread(channelId: string, threadId: string): Thread | undefined;

  /** Returns what ends it. */
  on<T extends keyof Events>(type: T, listener: (event: Events[T]) => void): () => void;

  /** Resolves when live. Rejects if the first sync fails, or the token is refused. */
  connect(): Promise<void>;
  /** Offline by hand; connect() goes on where it was. */
  disconnect(): void;
  /** For good. */
  close(): void;
  /** Resolves when everything that the service announced before this call is in what is known here. */
  settled(): Promise<void>;

  /** Opens a channel: what is there is read, and what comes is read at once. Resolves to `U` as it stood before. */
  focus(channelId: string, options?: { read?: boolean }): Promise<Unread>;
  blur(): Promise<void>;
  markRead(channelId: string, target?: ReadTarget): Promise<ReadResult>;
  markUnread(channelId: string, fromMessageId: string): Promise<ReadResult>;
  markThreadRead(channelId: string, threadId: string, target?: { upTo?: string }): Promise<ReadResult>;
  /** Sets the badge to 0. With the cursor of a tap: the next page of what it showed, and nothing changes. */
  tap(options?: { cursor?: string }): Promise<Tap>;

  /** Any other call of the HTTP API, as the user. Throws ReadstateError. */
  http<T = any>(method: string, path: string, body?: unknown): Promise<T>;
}
