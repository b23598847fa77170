-- Ids are compared by their bytes (COLLATE "C"), times are milliseconds since 1970.

-- Counters of the store itself.
CREATE TABLE meta (
    key text COLLATE "C" PRIMARY KEY,
    value bigint NOT NULL
);

INSERT INTO meta (key, value) VALUES ('generation', 0), ('store', (random() * 9007199254740991)::bigint);

-- A deleted channel keeps its row: its seqs and change numbers go on if it is created again. A thread has a
-- row too: its id is the channel's and the root's, with 0x1F between, and so in members and read_receipts.
-- Rows that are updated in place have room on their page to be.
CREATE TABLE channels (
    channel_id text COLLATE "C" PRIMARY KEY,
    type text NOT NULL,
    name text,
    avatar text,
    archived boolean NOT NULL,
    deleted boolean NOT NULL,
    mode text NOT NULL,
    member_count bigint NOT NULL,
    last_seq bigint NOT NULL,
    last_id text COLLATE "C",
    last_at bigint NOT NULL,
    change bigint NOT NULL,
    position bigint NOT NULL,
    latest_id text COLLATE "C",
    latest_seq bigint,
    latest_at bigint,
    latest_sender text COLLATE "C",
    latest_preview text,
    peers text[] NOT NULL
) WITH (fillfactor = 80);

CREATE INDEX channels_by_position ON channels (position);

-- One row per user and channel, kept after leaving. `skipped`: what joins alone marked as read, as an array of
-- (after, up to). `joined_position`: where in the log the join stands.
CREATE TABLE members (
    user_id text COLLATE "C" NOT NULL,
    channel_id text COLLATE "C" NOT NULL,
    active boolean NOT NULL,
    joined_seq bigint NOT NULL,
    joined_at bigint NOT NULL,
    skipped jsonb NOT NULL,
    muted_until bigint NOT NULL DEFAULT 0,
    count text NOT NULL DEFAULT 'all',
    receipts text NOT NULL DEFAULT 'public',
    pinned boolean NOT NULL DEFAULT false,
    archived_seq bigint NOT NULL DEFAULT -1,
    user_change bigint NOT NULL DEFAULT 0,
    joined_position bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (user_id, channel_id)
);

CREATE INDEX members_by_channel ON members (channel_id, active, user_id);

-- A deleted message keeps its row and its seq. A delete of an unknown id leaves a row without a sender.
-- Everything that is asked of messages names a channel, so it is answered by one partition. `away_set`: who was away when
-- a message came, and `accepted_at`: when that was; both NULL if nobody was.
CREATE TABLE messages (
    channel_id text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    seq bigint,
    sender_id text COLLATE "C" NOT NULL,
    at bigint NOT NULL,
    sent_at bigint,
    text text,
    preview text,
    thread_id text COLLATE "C",
    thread_seq bigint,
    mentions text[] NOT NULL,
    silent boolean NOT NULL,
    deleted boolean NOT NULL,
    backfill boolean NOT NULL,
    change bigint NOT NULL,
    position bigint NOT NULL,
    accepted_at bigint,
    away_set bigint,
    PRIMARY KEY (channel_id, id)
) PARTITION BY HASH (channel_id);

DO $$
BEGIN
    FOR part IN 0..15 LOOP
        EXECUTE format('CREATE TABLE messages_%s PARTITION OF messages FOR VALUES WITH (MODULUS 16, REMAINDER %s)',
            lpad(part::text, 2, '0'), part);
    END LOOP;
END
$$;

CREATE UNIQUE INDEX messages_by_seq ON messages (channel_id, seq);
CREATE INDEX messages_by_sender ON messages (channel_id, sender_id, seq);
CREATE INDEX messages_by_thread ON messages (channel_id, thread_id, thread_seq) WHERE thread_id IS NOT NULL;
CREATE INDEX messages_without_seq ON messages (channel_id, position, id) WHERE seq IS NULL;

-- `apart`: the seqs read one by one beyond last_read_seq, in ascending order.
CREATE TABLE read_receipts (
    user_id text COLLATE "C" NOT NULL,
    channel_id text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    last_read_seq bigint NOT NULL,
    apart bigint[] NOT NULL,
    last_read_id text COLLATE "C",
    last_read_at bigint,
    read_at bigint NOT NULL,
    user_change bigint NOT NULL,
    PRIMARY KEY (user_id, channel_id)
) WITH (fillfactor = 80);

CREATE INDEX read_receipts_by_channel ON read_receipts (channel_id, user_id);

CREATE TABLE undo (
    token text COLLATE "C" PRIMARY KEY,
    user_id text COLLATE "C" NOT NULL,
    expires_at bigint NOT NULL,
    items jsonb NOT NULL
);

CREATE INDEX undo_by_expiry ON undo (expires_at);
CREATE INDEX undo_by_user ON undo (user_id);

-- The receivers of messages who were away, kept once for all messages of a channel that have the same ones. `key`: made
-- from the ids. `used_at`: when a message last had it, to within a day.
CREATE TABLE away_sets (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    channel_id text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    receivers text[] COLLATE "C" NOT NULL,
    used_at bigint NOT NULL,
    UNIQUE (channel_id, key)
);

-- Who wrote to whom while away: the first message of each receiver, sender and channel since the receiver's last tap, and
-- those that did not reach a receiver who was online. The key begins with what a badge counts, so it answers "how many different people
-- since" by itself; and a note that comes again is the same one. An index answers alone only where pages are
-- known to hold nothing but visible rows, so they are looked over early.
CREATE TABLE undelivered (
    receiver_id text COLLATE "C" NOT NULL,
    accepted_at bigint NOT NULL,
    sender_id text COLLATE "C" NOT NULL,
    channel_id text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (receiver_id, accepted_at, sender_id, channel_id, message_id)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX undelivered_by_pair ON undelivered (sender_id, channel_id, receiver_id, accepted_at);

CREATE TABLE user_activity (
    user_id text COLLATE "C" PRIMARY KEY,
    last_tap bigint NOT NULL DEFAULT 0,
    last_seen bigint NOT NULL DEFAULT 0,
    receipts text NOT NULL DEFAULT 'public',
    user_change bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 80);

CREATE INDEX user_activity_by_tap ON user_activity (last_tap);

-- Which process writes, where only one may: its name, a number that grows with every change of hands, and until when
-- nobody else may take over (in ms by the clock of the database).
CREATE TABLE lease (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    owner text NOT NULL,
    token bigint NOT NULL,
    expires_at bigint NOT NULL
);

INSERT INTO lease (owner, token, expires_at) VALUES ('', 0, 0);

-- Begins a write of such a process. Whoever takes over waits for the writes that have come through here, and those
-- that come later see the new number: a volatile function looks anew with each of its statements.
CREATE FUNCTION require_lease(mine bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(8243107216154682739);
    IF NOT EXISTS (SELECT FROM lease WHERE token = mine) THEN
        RAISE EXCEPTION 'another process has taken it over' USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END
$$;

-- Up to where the partitions of a log are applied. `base`: what is added to an offset to make it a place that no event
-- of an earlier log has. `reached`: [offset, user] for each receiver of an event that may be incomplete who had a
-- connection then: a replay tracks its deliveries again. `epoch`: the leader epoch of the last event, if `epoch_position` is its position;
-- a process of an older version moves on without it.
CREATE TABLE log_places (
    log text COLLATE "C" NOT NULL,
    part integer NOT NULL,
    base bigint NOT NULL,
    position bigint NOT NULL,
    reached jsonb NOT NULL DEFAULT '[]',
    epoch integer NOT NULL DEFAULT -1,
    epoch_position bigint NOT NULL DEFAULT -1,
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

-- Whom a message in a big channel named before it was edited: a replay of the edit is announced to them too.
CREATE TABLE once_named (
    channel_id text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (channel_id, message_id, user_id)
);
CREATE INDEX once_named_by_user ON once_named (user_id);

-- The change number under which a channel was deleted last: a replay of the delete removes nothing newer.
CREATE TABLE gone (
    channel_id text COLLATE "C" PRIMARY KEY,
    change bigint NOT NULL
);

-- Keys that the service makes for itself and shows to no one. The first process that needs one makes it.
CREATE TABLE secrets (
    name text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL
);

-- Generations of the hot store by slot: the number under which the state in these slots counts as loaded, and the run id
-- of the server that owned them when they got it. A slot whose owner is another one has lost its state.
CREATE TABLE slots (
    first integer PRIMARY KEY,
    last integer NOT NULL,
    number bigint NOT NULL,
    run text COLLATE "C" NOT NULL
);
