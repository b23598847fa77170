-- What the cluster profile keeps.

-- Up to where the partitions of a log are applied. `base`: what is added to an offset to make it a place that no event
-- of an earlier log has.
CREATE TABLE log_places (
    log TEXT NOT NULL,
    part INTEGER NOT NULL,
    base INTEGER NOT NULL,
    position INTEGER NOT NULL,
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

-- Whom a message in a big channel named before it was edited: should the edit come again, they are told again.
CREATE TABLE once_named (
    channel_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    PRIMARY KEY (channel_id, message_id, user_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX once_named_by_user ON once_named (user_id);

-- The change number under which a channel was deleted last: should that come again, it takes nothing newer with it.
CREATE TABLE gone (
    channel_id TEXT PRIMARY KEY,
    change INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
