-- Counters of the store itself.
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO meta (key, value) VALUES ('generation', 0), ('store', abs(random()));

-- A deleted channel keeps its row: its seqs and change numbers go on if it is created again. A thread has a
-- row too: its id is the channel's and the root's, with 0x1F between, and so in members and read_receipts.
CREATE TABLE channels (
    channel_id TEXT PRIMARY KEY,
    type TEXT NOT NULL,
    name TEXT,
    avatar TEXT,
    archived INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    mode TEXT NOT NULL,
    member_count INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    last_id TEXT,
    last_at INTEGER NOT NULL,
    change INTEGER NOT NULL,
    position INTEGER NOT NULL,
    latest_id TEXT,
    latest_seq INTEGER,
    latest_at INTEGER,
    latest_sender TEXT,
    latest_preview TEXT,
    peers TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX channels_by_position ON channels (position);

-- One row per user and channel, kept after leaving. `skipped`: what joins alone marked as read. `joined_position`:
-- where in the log the join stands.
CREATE TABLE members (
    user_id TEXT NOT NULL,
    channel_id TEXT NOT NULL,
    active INTEGER NOT NULL,
    joined_seq INTEGER NOT NULL,
    joined_at INTEGER NOT NULL,
    skipped TEXT NOT NULL,
    muted_until INTEGER NOT NULL DEFAULT 0,
    count TEXT NOT NULL DEFAULT 'all',
    receipts TEXT NOT NULL DEFAULT 'public',
    pinned INTEGER NOT NULL DEFAULT 0,
    archived_seq INTEGER NOT NULL DEFAULT -1,
    user_change INTEGER NOT NULL DEFAULT 0,
    joined_position INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (user_id, channel_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX members_by_channel ON members (channel_id, active, user_id);

-- A deleted message keeps its row and its seq. A delete of an unknown id leaves a row without a sender. `away_set`: who
-- was away when it came, and `accepted_at`: when that was; both NULL if nobody was.
CREATE TABLE messages (
    channel_id TEXT NOT NULL,
    id TEXT NOT NULL,
    seq INTEGER,
    sender_id TEXT NOT NULL,
    at INTEGER NOT NULL,
    sent_at INTEGER,
    text TEXT,
    preview TEXT,
    thread_id TEXT,
    thread_seq INTEGER,
    mentions TEXT NOT NULL,
    silent INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    backfill INTEGER NOT NULL,
    change INTEGER NOT NULL,
    position INTEGER NOT NULL,
    accepted_at INTEGER,
    away_set INTEGER
) STRICT;

CREATE UNIQUE INDEX messages_by_id ON messages (channel_id, id);
CREATE UNIQUE INDEX messages_by_seq ON messages (channel_id, seq);
CREATE INDEX messages_by_sender ON messages (channel_id, sender_id, seq);
CREATE INDEX messages_by_thread ON messages (channel_id, thread_id, thread_seq) WHERE thread_id IS NOT NULL;
CREATE INDEX messages_in_threads_only ON messages (channel_id, position) WHERE seq IS NULL;

-- `apart`: the seqs read one by one beyond last_read_seq, as a JSON array in ascending order.
CREATE TABLE read_receipts (
    user_id TEXT NOT NULL,
    channel_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    last_read_seq INTEGER NOT NULL,
    apart TEXT NOT NULL,
    last_read_id TEXT,
    last_read_at INTEGER,
    read_at INTEGER NOT NULL,
    user_change INTEGER NOT NULL,
    PRIMARY KEY (user_id, channel_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX read_receipts_by_channel ON read_receipts (channel_id, user_id);

CREATE TABLE undo (
    token TEXT PRIMARY KEY,
    user_id TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    items TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX undo_by_expiry ON undo (expires_at);

-- The receivers of messages who were away, kept once for all messages of a channel that have the same ones. `key`: made
-- from the ids. `used_at`: when a message last had it, to within a day.
CREATE TABLE away_sets (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    channel_id TEXT NOT NULL,
    key TEXT NOT NULL,
    receivers TEXT NOT NULL,
    used_at INTEGER NOT NULL,
    UNIQUE (channel_id, key)
) STRICT;

-- Who wrote to whom while away: the first message of each receiver, sender and channel since the receiver's last tap. The
-- key answers "how many different people since" by itself.
CREATE TABLE undelivered (
    receiver_id TEXT NOT NULL,
    accepted_at INTEGER NOT NULL,
    sender_id TEXT NOT NULL,
    channel_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    PRIMARY KEY (receiver_id, accepted_at, sender_id, channel_id, message_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX undelivered_by_pair ON undelivered (sender_id, channel_id, receiver_id, accepted_at);

CREATE TABLE user_activity (
    user_id TEXT PRIMARY KEY,
    last_tap INTEGER NOT NULL DEFAULT 0,
    last_seen INTEGER NOT NULL DEFAULT 0,
    receipts TEXT NOT NULL DEFAULT 'public',
    user_change INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE INDEX user_activity_by_tap ON user_activity (last_tap);

-- Up to where the partitions of a log are applied. `base`: what is added to an offset to make it a place that no event
-- of an earlier log has. `reached`: [offset, user] for each receiver of an event that may be incomplete who had a
-- connection then: a replay tracks its deliveries again. `epoch`: the leader epoch of the last event, if `epoch_position` is its position;
-- a process of an older version moves on without it.
CREATE TABLE log_places (
    log TEXT NOT NULL,
    part INTEGER NOT NULL,
    base INTEGER NOT NULL,
    position INTEGER NOT NULL,
    reached TEXT NOT NULL DEFAULT '[]',
    epoch INTEGER NOT NULL DEFAULT -1,
    epoch_position INTEGER NOT NULL DEFAULT -1,
    PRIMARY KEY (log, part)
) STRICT, WITHOUT ROWID;

-- Who was erased, as a hash of the id, and when: events from before that are still on their way bring nothing back.
CREATE TABLE erased (
    user_hash TEXT PRIMARY KEY,
    at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Events that failed again and again and could not be repaired, until somebody has them played again.
CREATE TABLE dead_letters (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL,
    event TEXT NOT NULL,
    error TEXT NOT NULL,
    tries INTEGER NOT NULL,
    place TEXT NOT NULL,
    failed_at INTEGER NOT NULL,
    UNIQUE (topic, place)
) STRICT;

-- Whom a message in a big channel named before it was edited: a replay of the edit is announced to them too.
CREATE TABLE once_named (
    channel_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    PRIMARY KEY (channel_id, message_id, user_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX once_named_by_user ON once_named (user_id);

-- The change number under which a channel was deleted last: a replay of the delete removes nothing newer.
CREATE TABLE gone (
    channel_id TEXT PRIMARY KEY,
    change INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Keys that the service makes for itself and shows to no one. The first process that needs one makes it.
CREATE TABLE secrets (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Generations of the hot store by slot: the number under which the state in these slots counts as loaded, and the run id
-- of the server that owned them when they got it. A slot whose owner is another one has lost its state.
CREATE TABLE slots (
    first INTEGER PRIMARY KEY,
    last INTEGER NOT NULL,
    number INTEGER NOT NULL,
    run TEXT NOT NULL
) STRICT, WITHOUT ROWID;
