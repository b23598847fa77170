-- The receivers of a message who were away are a set, which the message names; `undelivered` keeps only the first message
-- of each receiver, sender and channel since the last tap.
CREATE TABLE away_sets (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    channel_id TEXT NOT NULL,
    key TEXT NOT NULL,
    receivers TEXT NOT NULL,
    used_at INTEGER NOT NULL,
    UNIQUE (channel_id, key)
) STRICT;

ALTER TABLE messages ADD COLUMN accepted_at INTEGER;
ALTER TABLE messages ADD COLUMN away_set INTEGER;

CREATE TABLE away_lists AS
SELECT channel_id, message_id, accepted_at, receivers,
    'before ' || min(message_id) OVER (PARTITION BY channel_id, receivers) AS key
FROM (SELECT channel_id, message_id, max(accepted_at) AS accepted_at, json_group_array(receiver_id) AS receivers
      FROM (SELECT * FROM undelivered ORDER BY channel_id, message_id, receiver_id)
      GROUP BY channel_id, message_id);

INSERT INTO away_sets (channel_id, key, receivers, used_at)
SELECT channel_id, key, min(receivers), max(accepted_at) FROM away_lists GROUP BY channel_id, key;

UPDATE messages SET accepted_at = l.accepted_at, away_set = s.id
FROM away_lists AS l CROSS JOIN away_sets AS s ON s.channel_id = l.channel_id AND s.key = l.key
WHERE messages.channel_id = l.channel_id AND messages.id = l.message_id;

DROP TABLE away_lists;

ALTER TABLE undelivered RENAME TO undelivered_before;

CREATE TABLE undelivered (
    receiver_id TEXT NOT NULL,
    accepted_at INTEGER NOT NULL,
    sender_id TEXT NOT NULL,
    channel_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    PRIMARY KEY (receiver_id, accepted_at, sender_id, channel_id, message_id)
) STRICT, WITHOUT ROWID;

-- min() also decides which message_id the group has.
INSERT INTO undelivered
SELECT u.receiver_id, min(u.accepted_at), u.sender_id, u.channel_id, u.message_id
FROM undelivered_before AS u LEFT JOIN user_activity AS a ON a.user_id = u.receiver_id
WHERE u.accepted_at > coalesce(a.last_tap, 0)
GROUP BY u.receiver_id, u.sender_id, u.channel_id;

DROP TABLE undelivered_before;
CREATE INDEX undelivered_by_pair ON undelivered (sender_id, channel_id, receiver_id, accepted_at);
CREATE INDEX user_activity_by_tap ON user_activity (last_tap);
