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
