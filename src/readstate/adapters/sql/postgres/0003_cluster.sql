-- What the cluster profile keeps.

-- Up to where the partitions of a log are applied. `base`: what is added to an offset to make it a place that no event
-- of an earlier log has.
CREATE TABLE log_places (
    log text COLLATE "C" NOT NULL,
    part integer NOT NULL,
    base bigint NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (log, part)
);

-- Who was erased, as a hash of the id, and when: events from before that are still on their way bring nothing back.
CREATE TABLE erased (
    user_hash text COLLATE "C" PRIMARY KEY,
    at bigint NOT NULL
);

-- Events that failed again and again and could not be repaired, until somebody has them played again.
CREATE TABLE dead_letters (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text COLLATE "C" NOT NULL,
    event text NOT NULL,
    error text NOT NULL,
    tries integer NOT NULL,
    place text NOT NULL,
    failed_at bigint NOT NULL,
    UNIQUE (topic, place)
);

-- Whom a message in a big channel named before it was edited: should the edit come again, they are told again.
CREATE TABLE once_named (
    channel_id text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (channel_id, message_id, user_id)
);
CREATE INDEX once_named_by_user ON once_named (user_id);

-- The change number under which a channel was deleted last: should that come again, it takes nothing newer with it.
CREATE TABLE gone (
    channel_id text COLLATE "C" PRIMARY KEY,
    change bigint NOT NULL
);
