-- The receivers of a message who were away are a set, which the message names; `undelivered` keeps only the first message
-- of each receiver, sender and channel since the last tap.
LOCK TABLE messages, undelivered IN ACCESS EXCLUSIVE MODE;

CREATE TABLE away_sets (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    channel_id text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    receivers text[] COLLATE "C" NOT NULL,
    used_at bigint NOT NULL,
    UNIQUE (channel_id, key)
);

ALTER TABLE messages ADD COLUMN accepted_at bigint;
ALTER TABLE messages ADD COLUMN away_set bigint;

CREATE TABLE away_lists AS
SELECT channel_id, message_id, max(accepted_at) AS accepted_at, array_agg(receiver_id ORDER BY receiver_id) AS receivers
FROM undelivered GROUP BY channel_id, message_id;

INSERT INTO away_sets (channel_id, key, receivers, used_at)
SELECT channel_id, 'before ' || min(message_id), receivers, max(accepted_at)
FROM away_lists GROUP BY channel_id, receivers;

UPDATE messages AS m SET accepted_at = l.accepted_at, away_set = s.id
FROM away_lists AS l JOIN away_sets AS s ON s.channel_id = l.channel_id AND s.receivers = l.receivers
WHERE m.channel_id = l.channel_id AND m.id = l.message_id;

DROP TABLE away_lists;

CREATE TABLE undelivered_by_pairs AS
SELECT DISTINCT ON (u.receiver_id, u.sender_id, u.channel_id)
    u.receiver_id, u.accepted_at, u.sender_id, u.channel_id, u.message_id
FROM undelivered AS u LEFT JOIN user_activity AS a ON a.user_id = u.receiver_id
WHERE u.accepted_at > coalesce(a.last_tap, 0)
ORDER BY u.receiver_id, u.sender_id, u.channel_id, u.accepted_at;

DROP INDEX undelivered_by_message, undelivered_by_sender;
TRUNCATE undelivered;
INSERT INTO undelivered SELECT * FROM undelivered_by_pairs ORDER BY receiver_id, accepted_at;
DROP TABLE undelivered_by_pairs;
CREATE INDEX undelivered_by_pair ON undelivered (sender_id, channel_id, receiver_id, accepted_at);
CREATE INDEX user_activity_by_tap ON user_activity (last_tap);
