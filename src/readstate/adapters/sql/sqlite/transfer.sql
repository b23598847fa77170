-- Moving in and out. As in queries.sql, keys come and rows go as JSON arrays; exports go row by row, in the
-- order of an index, each row with the key that the next page begins after.

-- name: known_messages
-- What an import must know of messages, by (channel, id).
SELECT json_group_array(json_array(m.channel_id, m.id, json_array(
    m.seq, m.thread_seq, m.sender_id, m.at, m.sent_at, m.thread_id, json(iif(m.deleted, 'true', 'false')))))
FROM json_each(:keys) AS k
JOIN messages AS m ON m.channel_id = k.value ->> 0 AND m.id = k.value ->> 1;

-- name: tails
-- The newest message of each channel that is there.
SELECT json_group_array(json_array(k.value, m.seq, m.at))
FROM json_each(:keys) AS k
JOIN messages AS m ON m.channel_id = k.value
    AND m.seq = (SELECT max(x.seq) FROM messages AS x WHERE x.channel_id = k.value);

-- name: around
-- What stands at and around places (room, seq, channel).
SELECT json_group_array(json_array(k.value ->> 0, k.value ->> 1, json_array(
    (SELECT at FROM messages WHERE channel_id = k.value ->> 2 AND seq < k.value ->> 1 ORDER BY seq DESC LIMIT 1),
    (SELECT id FROM messages WHERE channel_id = k.value ->> 2 AND seq = k.value ->> 1),
    (SELECT at FROM messages WHERE channel_id = k.value ->> 2 AND seq > k.value ->> 1 ORDER BY seq LIMIT 1))))
FROM json_each(:keys) AS k;

-- name: around_replies
-- What stands at and around places in threads (room, thread seq, channel, thread).
SELECT json_group_array(json_array(k.value ->> 0, k.value ->> 1, json_array(
    (SELECT at FROM messages WHERE channel_id = k.value ->> 2 AND thread_id = k.value ->> 3
        AND thread_seq < k.value ->> 1 ORDER BY thread_seq DESC LIMIT 1),
    (SELECT id FROM messages WHERE channel_id = k.value ->> 2 AND thread_id = k.value ->> 3
        AND thread_seq = k.value ->> 1),
    (SELECT at FROM messages WHERE channel_id = k.value ->> 2 AND thread_id = k.value ->> 3
        AND thread_seq > k.value ->> 1 ORDER BY thread_seq LIMIT 1))))
FROM json_each(:keys) AS k;

-- name: user_rooms
-- Users in rooms, by (room, user): membership, preferences, pointer.
SELECT json_group_array(json_array(k.value ->> 0, k.value ->> 1,
    json(iif(m.user_id IS NULL, NULL, json_object(
        'channel_id', m.channel_id, 'user_id', m.user_id, 'active', json(iif(m.active, 'true', 'false')),
        'joined_seq', m.joined_seq, 'joined_at', m.joined_at, 'skipped', json(m.skipped)))),
    json_array({preferences of m}),
    json(iif(r.user_id IS NULL, NULL, json_array(
        r.epoch, r.last_read_seq, json(r.apart), r.last_read_id, r.last_read_at, r.read_at, r.user_change)))))
FROM json_each(:keys) AS k
LEFT JOIN members AS m ON m.user_id = k.value ->> 1 AND m.channel_id = k.value ->> 0
LEFT JOIN read_receipts AS r ON r.user_id = k.value ->> 1 AND r.channel_id = k.value ->> 0
WHERE m.user_id IS NOT NULL OR r.user_id IS NOT NULL;

-- name: reply_positions
-- Places in threads by (room, thread seq, channel, thread).
SELECT json_group_array(json_array(k.value ->> 0, m.thread_seq, m.id, m.at))
FROM json_each(:keys) AS k
JOIN messages AS m ON m.channel_id = k.value ->> 2 AND m.thread_id = k.value ->> 3 AND m.thread_seq = k.value ->> 1;

-- name: ends
-- The first and the last seq of a channel that have a message.
SELECT (SELECT min(seq) FROM messages WHERE channel_id = :channel AND seq > 0),
    (SELECT max(seq) FROM messages WHERE channel_id = :channel AND seq > 0);

-- name: reply_ends
-- The first and the last seq of a thread that have a reply.
SELECT (SELECT min(thread_seq) FROM messages
        WHERE channel_id = :channel AND thread_id = :thread AND thread_seq > 0),
    (SELECT max(thread_seq) FROM messages
        WHERE channel_id = :channel AND thread_id = :thread AND thread_seq > 0);

-- name: at_or_before
-- The newest message of a channel up to a seq.
SELECT seq, id, at FROM messages WHERE channel_id = :channel AND seq > 0 AND seq <= :seq ORDER BY seq DESC LIMIT 1;

-- name: reply_at_or_before
-- The newest reply of a thread up to a seq.
SELECT thread_seq, id, at FROM messages
WHERE channel_id = :channel AND thread_id = :thread AND thread_seq > 0 AND thread_seq <= :seq
ORDER BY thread_seq DESC LIMIT 1;

-- name: own_beyond
-- The newest of users' own messages in channels after (channel, user, seq).
SELECT json_group_array(json_array(k.value ->> 0, k.value ->> 1, json((
    SELECT json_group_array(seq) FROM (
        SELECT seq FROM messages
        WHERE channel_id = k.value ->> 0 AND sender_id = k.value ->> 1 AND seq > k.value ->> 2
        ORDER BY seq DESC LIMIT 10000)))))
FROM json_each(:keys) AS k;

-- name: concerned_by_replies
-- The threads in which (channel, user, since) have begun, replied or were mentioned, by replies from then on: (channel,
-- thread, user, up to where that reads, whether by an own reply).
WITH k AS MATERIALIZED (
    SELECT value ->> 0 AS channel, value ->> 1 AS user, value ->> 2 AS since FROM json_each(:keys))
SELECT json_group_array(json_array(channel, thread, user, seq, json(iif(own, 'true', 'false')))) FROM (
    SELECT k.channel, m.thread_id AS thread, k.user, max(m.thread_seq) AS seq, 1 AS own
    FROM k CROSS JOIN messages AS m ON m.channel_id = k.channel AND m.sender_id = k.user
    WHERE m.thread_seq IS NOT NULL AND m.at >= k.since
    GROUP BY k.channel, m.thread_id, k.user
    UNION ALL
    SELECT k.channel, m.id, k.user, 0, 0
    FROM k CROSS JOIN messages AS m ON m.channel_id = k.channel AND m.sender_id = k.user
    WHERE m.thread_id IS NULL AND EXISTS (
        SELECT 1 FROM messages AS r
        WHERE r.channel_id = k.channel AND r.thread_id = m.id AND r.thread_seq IS NOT NULL AND r.at >= k.since)
    UNION ALL
    SELECT r.channel_id, r.thread_id, k.user, min(r.thread_seq) - 1, 0
    FROM (SELECT DISTINCT channel FROM k) AS c
    CROSS JOIN messages AS r ON r.channel_id = c.channel AND r.thread_id IS NOT NULL
    CROSS JOIN json_each(r.mentions) AS named
    CROSS JOIN k ON k.channel = r.channel_id AND k.user = named.value
    WHERE r.thread_seq IS NOT NULL AND r.at >= k.since
    GROUP BY r.channel_id, r.thread_id, k.user);

-- name: activities
-- What is kept of users.
SELECT json_group_array(json_object(
    'user_id', u.user_id, 'last_tap', u.last_tap, 'last_seen', u.last_seen, 'receipts', u.receipts))
FROM json_each(:keys) AS k
JOIN user_activity AS u ON u.user_id = k.value;

-- name: active_members
-- Everyone in these rooms.
SELECT json_group_array(m.user_id)
FROM json_each(:keys) AS k
JOIN members AS m ON m.channel_id = k.value AND m.active = 1;

-- name: next_position
-- Later than everything so far.
SELECT coalesce(max(position), 0) + 1 FROM channels;

-- name: add_messages
-- New messages, many in one statement.
INSERT INTO messages (channel_id, id, seq, sender_id, at, sent_at, text, preview, thread_id, thread_seq, mentions, silent,
    deleted, backfill, change, position)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: put_user_rooms
-- Memberships with preferences: (member, preferences).
INSERT INTO members (user_id, channel_id, active, joined_seq, joined_at, skipped, {preferences}, user_change)
SELECT m ->> 'user_id', m ->> 'channel_id', m ->> 'active', m ->> 'joined_seq', m ->> 'joined_at', m -> 'skipped',
    {preferences of p}, 0
FROM (SELECT value -> 0 AS m, value -> 1 AS p FROM json_each(:rows)) WHERE true
ON CONFLICT (user_id, channel_id) DO UPDATE SET
    active = excluded.active, joined_seq = excluded.joined_seq, joined_at = excluded.joined_at,
    skipped = excluded.skipped, {preferences excluded};

-- name: put_pointers
-- Pointers that are merged already.
INSERT INTO read_receipts
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value -> 4, value ->> 5, value ->> 6, value ->> 7, 0
FROM json_each(:rows) WHERE true
ON CONFLICT (user_id, channel_id) DO UPDATE SET
    epoch = excluded.epoch, last_read_seq = excluded.last_read_seq, apart = excluded.apart,
    last_read_id = excluded.last_read_id, last_read_at = excluded.last_read_at, read_at = excluded.read_at;

-- name: put_activities
-- What is kept of users.
INSERT OR REPLACE INTO user_activity (user_id, last_tap, last_seen, receipts)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(:rows);

-- name: delete_messages
-- Messages by (channel, id) keep their places, and nothing else.
UPDATE messages SET deleted = 1, text = NULL, preview = NULL
WHERE rowid IN (SELECT m.rowid FROM json_each(:keys) AS k
                JOIN messages AS m ON m.channel_id = k.value ->> 0 AND m.id = k.value ->> 1);

-- name: export_rooms
-- Channels, each followed by its threads.
SELECT channel_id, 0, '', json_object(
    'type', iif(type = 'thread', 'thread', 'channel'), 'channel_id', channel_id, 'kind', type, 'name', name,
    'avatar', avatar, 'archived', json(iif(archived, 'true', 'false')),
    'deleted', json(iif(deleted, 'true', 'false')), 'last_seq', last_seq, 'last_id', last_id,
    'last_at', nullif(last_at, 0),
    'latest', json(iif(latest_id IS NULL, NULL, json_object(
        'id', latest_id, 'seq', latest_seq, 'at', latest_at, 'sender_id', latest_sender,
        'preview', latest_preview))))
FROM channels WHERE channel_id > :a
ORDER BY channel_id LIMIT :limit;

-- name: export_unplaced
-- Messages with a place neither in a channel nor in a thread: a thread may hang on them, so they come first.
SELECT '', rowid, '', json_object(
    'type', 'message', 'channel_id', channel_id, 'id', id, 'sender_id', nullif(sender_id, ''), 'at', at,
    'sent_at', sent_at, 'text', text, 'preview', preview, 'mentions', json(mentions),
    'silent', json(iif(silent, 'true', 'false')), 'deleted', json(iif(deleted, 'true', 'false')),
    'backfill', json(iif(backfill, 'true', 'false')))
FROM messages WHERE rowid > :b AND seq IS NULL AND thread_id IS NULL
ORDER BY rowid LIMIT :limit;

-- name: export_messages
-- Messages with a place in their channel, by channel and seq.
SELECT channel_id, seq, '', json_object(
    'type', 'message', 'channel_id', channel_id, 'id', id, 'seq', seq, 'sender_id', sender_id, 'at', at,
    'sent_at', sent_at, 'text', text, 'preview', preview, 'thread_id', thread_id, 'thread_seq', thread_seq,
    'mentions', json(mentions), 'silent', json(iif(silent, 'true', 'false')),
    'deleted', json(iif(deleted, 'true', 'false')))
FROM messages WHERE (channel_id, seq) > (:a, :b) AND seq IS NOT NULL
ORDER BY channel_id, seq LIMIT :limit;

-- name: export_replies
-- Replies that have no place in their channel, as they came.
SELECT '', rowid, '', json_object(
    'type', 'message', 'channel_id', channel_id, 'id', id, 'sender_id', sender_id, 'at', at,
    'sent_at', sent_at, 'text', text, 'preview', preview, 'thread_id', thread_id, 'thread_seq', thread_seq,
    'mentions', json(mentions), 'silent', json(iif(silent, 'true', 'false')),
    'deleted', json(iif(deleted, 'true', 'false')), 'backfill', json(iif(backfill, 'true', 'false')))
FROM messages WHERE rowid > :b AND seq IS NULL AND thread_id IS NOT NULL
ORDER BY rowid LIMIT :limit;

-- name: export_members
-- Members of channels and followers of threads, by room.
SELECT m.channel_id, m.active, m.user_id, json_object(
    'type', iif(c.type = 'thread', 'follow', 'member'), 'channel_id', m.channel_id, 'user_id', m.user_id,
    'active', json(iif(m.active, 'true', 'false')), 'joined_seq', m.joined_seq, 'joined_at', m.joined_at,
    'skipped', json(m.skipped),
    'preferences', json_array({preferences of m}),
    'last_read', json(iif(r.user_id IS NULL, NULL, json_object(
        'epoch', r.epoch, 'seq', r.last_read_seq, 'apart', json(r.apart), 'id', r.last_read_id,
        'at', r.last_read_at, 'read_at', r.read_at))))
FROM members AS m
CROSS JOIN channels AS c ON c.channel_id = m.channel_id AND NOT c.deleted
LEFT JOIN read_receipts AS r ON r.user_id = m.user_id AND r.channel_id = m.channel_id
WHERE (m.channel_id, m.active, m.user_id) > (:a, :b, :c)
ORDER BY m.channel_id, m.active, m.user_id LIMIT :limit;

-- name: export_pointers
-- Pointers of those who were never members, by room.
SELECT r.channel_id, 0, r.user_id, json_object(
    'type', 'pointer', 'channel_id', r.channel_id, 'user_id', r.user_id,
    'last_read', json_object(
        'epoch', r.epoch, 'seq', r.last_read_seq, 'apart', json(r.apart), 'id', r.last_read_id,
        'at', r.last_read_at, 'read_at', r.read_at))
FROM read_receipts AS r
CROSS JOIN channels AS c ON c.channel_id = r.channel_id AND NOT c.deleted
LEFT JOIN members AS m ON m.user_id = r.user_id AND m.channel_id = r.channel_id
WHERE (r.channel_id, r.user_id) > (:a, :c) AND m.user_id IS NULL
ORDER BY r.channel_id, r.user_id LIMIT :limit;

-- name: export_users
-- What is kept of users.
SELECT user_id, 0, '', json_object(
    'type', 'user', 'user_id', user_id, 'receipts', receipts, 'last_tap', last_tap, 'last_seen', last_seen)
FROM user_activity WHERE user_id > :a
ORDER BY user_id LIMIT :limit;

-- name: rooms_of
-- The rooms that a user has to do with, and whether as a member.
SELECT json_group_array(json_array(channel_id, active)) FROM members WHERE user_id = :user;

-- name: badges_with
-- Who was told that a user wrote.
SELECT json_group_array(DISTINCT receiver_id) FROM undelivered WHERE sender_id = :user;

-- name: erase_members
-- A user's memberships, follows and preferences.
DELETE FROM members WHERE user_id = :user;

-- name: erase_receipts
-- A user's read pointers.
DELETE FROM read_receipts WHERE user_id = :user;

-- name: erase_undo
-- What a user could have undone.
DELETE FROM undo WHERE user_id = :user;

-- name: erase_undelivered
-- Who wrote to a user while away, and to whom the user wrote.
DELETE FROM undelivered WHERE receiver_id = :user OR sender_id = :user;

-- name: erase_away_sets
-- A user in the sets of receivers of the user's channels. The key is made from what a set no longer is: it goes.
UPDATE away_sets SET key = 'erased ' || id, receivers = (
    SELECT json_group_array(r.value) FROM json_each(away_sets.receivers) AS r WHERE r.value <> :user)
WHERE channel_id IN (SELECT m.channel_id FROM members AS m WHERE m.user_id = :user)
    AND EXISTS (SELECT 1 FROM json_each(away_sets.receivers) AS r WHERE r.value = :user);

-- name: erase_activity
-- When a user was last seen, and what the user wants.
DELETE FROM user_activity WHERE user_id = :user;

-- name: erase_reached
-- That a user had a connection when something was stored.
UPDATE log_places SET reached = (
    SELECT json_group_array(json(r.value)) FROM json_each(log_places.reached) AS r WHERE r.value ->> 1 <> :user)
WHERE EXISTS (SELECT 1 FROM json_each(log_places.reached) AS r WHERE r.value ->> 1 = :user);

-- name: erase_once_named
-- Mentions of a user that are none any more.
DELETE FROM once_named WHERE user_id = :user;
