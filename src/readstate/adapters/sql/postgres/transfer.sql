-- Moving in and out. As in queries.sql, keys come and rows go as JSON arrays; exports go row by row, in the
-- order of an index, each row with the key that the next page begins after.

-- name: known_messages
-- What an import must know of messages, by (channel, id).
SELECT coalesce(json_agg(json_build_array(m.channel_id, m.id, json_build_array(
    m.seq, m.thread_seq, m.sender_id, m.at, m.sent_at, m.thread_id, m.deleted))), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k
CROSS JOIN LATERAL (SELECT * FROM messages AS x WHERE x.channel_id = k ->> 0 AND x.id = k ->> 1 LIMIT 1) AS m;

-- name: tails
-- The newest message of each channel that is there.
SELECT coalesce(json_agg(json_build_array(k, m.seq, m.at)), '[]')
FROM jsonb_array_elements_text(:keys::jsonb) AS k
CROSS JOIN LATERAL (
    SELECT x.seq, x.at FROM messages AS x
    WHERE x.channel_id = k AND x.seq IS NOT NULL
    ORDER BY x.seq DESC LIMIT 1) AS m;

-- name: around
-- What stands at and around places (room, seq, channel).
WITH k AS MATERIALIZED (
    SELECT v ->> 0 AS room, (v ->> 1)::bigint AS seq, v ->> 2 AS channel FROM jsonb_array_elements(:keys::jsonb) AS v)
SELECT coalesce(json_agg(json_build_array(k.room, k.seq, json_build_array(
    (SELECT at FROM messages WHERE channel_id = k.channel AND seq < k.seq ORDER BY seq DESC LIMIT 1),
    (SELECT id FROM messages WHERE channel_id = k.channel AND seq = k.seq),
    (SELECT at FROM messages WHERE channel_id = k.channel AND seq > k.seq ORDER BY seq LIMIT 1)))), '[]')
FROM k;

-- name: around_replies
-- What stands at and around places in threads (room, thread seq, channel, thread).
WITH k AS MATERIALIZED (
    SELECT v ->> 0 AS room, (v ->> 1)::bigint AS seq, v ->> 2 AS channel, v ->> 3 AS thread
    FROM jsonb_array_elements(:keys::jsonb) AS v)
SELECT coalesce(json_agg(json_build_array(k.room, k.seq, json_build_array(
    (SELECT at FROM messages WHERE channel_id = k.channel AND thread_id = k.thread AND thread_seq < k.seq
        ORDER BY thread_seq DESC LIMIT 1),
    (SELECT id FROM messages WHERE channel_id = k.channel AND thread_id = k.thread AND thread_seq = k.seq LIMIT 1),
    (SELECT at FROM messages WHERE channel_id = k.channel AND thread_id = k.thread AND thread_seq > k.seq
        ORDER BY thread_seq LIMIT 1)))), '[]')
FROM k;

-- name: user_rooms
-- Users in rooms, by (room, user): membership, preferences, pointer.
SELECT coalesce(json_agg(json_build_array(k ->> 0, k ->> 1,
    CASE WHEN m.user_id IS NOT NULL THEN json_build_object(
        'channel_id', m.channel_id, 'user_id', m.user_id, 'active', m.active, 'joined_seq', m.joined_seq,
        'joined_at', m.joined_at, 'skipped', m.skipped) END,
    json_build_array({preferences of m}),
    CASE WHEN r.user_id IS NOT NULL THEN json_build_array(
        r.epoch, r.last_read_seq, r.apart, r.last_read_id, r.last_read_at, r.read_at, r.user_change) END)), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k
LEFT JOIN members AS m ON m.user_id = k ->> 1 AND m.channel_id = k ->> 0
LEFT JOIN read_receipts AS r ON r.user_id = k ->> 1 AND r.channel_id = k ->> 0
WHERE m.user_id IS NOT NULL OR r.user_id IS NOT NULL;

-- name: reply_positions
-- Places in threads by (room, thread seq, channel, thread).
SELECT coalesce(json_agg(json_build_array(k ->> 0, m.thread_seq, m.id, m.at)), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k
CROSS JOIN LATERAL (
    SELECT x.thread_seq, x.id, x.at FROM messages AS x
    WHERE x.channel_id = k ->> 2 AND x.thread_id = k ->> 3 AND x.thread_seq = (k ->> 1)::bigint LIMIT 1) AS m;

-- name: ends
-- The first and the last seq of a channel that have a message.
SELECT min(seq), max(seq) FROM messages WHERE channel_id = :channel AND seq > 0;

-- name: reply_ends
-- The first and the last seq of a thread that have a reply.
SELECT min(thread_seq), max(thread_seq) FROM messages
WHERE channel_id = :channel AND thread_id = :thread AND thread_seq > 0;

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
SELECT coalesce(json_agg(json_build_array(k ->> 0, k ->> 1, ARRAY(
    SELECT seq FROM messages
    WHERE channel_id = k ->> 0 AND sender_id = k ->> 1 AND seq > (k ->> 2)::bigint
    ORDER BY seq DESC LIMIT 10000))), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k;

-- name: concerned_by_replies
-- The threads in which (channel, user, since) have begun, replied or were mentioned, by replies from then on: (channel,
-- thread, user, up to where that reads, whether by an own reply).
WITH k AS MATERIALIZED (
    SELECT v ->> 0 AS channel, v ->> 1 AS member, (v ->> 2)::bigint AS since
    FROM jsonb_array_elements(:keys::jsonb) AS v)
SELECT coalesce(json_agg(json_build_array(channel, thread, member, seq, own)), '[]') FROM (
    SELECT k.channel, m.thread_id AS thread, k.member, max(m.thread_seq) AS seq, true AS own
    FROM k JOIN messages AS m ON m.channel_id = k.channel AND m.sender_id = k.member
    WHERE m.thread_seq IS NOT NULL AND m.at >= k.since
    GROUP BY k.channel, m.thread_id, k.member
    UNION ALL
    SELECT k.channel, m.id, k.member, 0, false
    FROM k JOIN messages AS m ON m.channel_id = k.channel AND m.sender_id = k.member
    WHERE m.thread_id IS NULL AND EXISTS (
        SELECT FROM messages AS r
        WHERE r.channel_id = k.channel AND r.thread_id = m.id AND r.thread_seq IS NOT NULL AND r.at >= k.since)
    UNION ALL
    SELECT r.channel_id, r.thread_id, k.member, min(r.thread_seq) - 1, false
    FROM (SELECT DISTINCT channel FROM k) AS c
    JOIN messages AS r ON r.channel_id = c.channel AND r.thread_id IS NOT NULL AND r.thread_seq IS NOT NULL
    CROSS JOIN LATERAL unnest(r.mentions) AS named
    JOIN k ON k.channel = r.channel_id AND k.member = named AND r.at >= k.since
    GROUP BY r.channel_id, r.thread_id, k.member) AS found;

-- name: activities
-- What is kept of users.
SELECT coalesce(json_agg(json_build_object(
    'user_id', u.user_id, 'last_tap', u.last_tap, 'last_seen', u.last_seen, 'receipts', u.receipts)), '[]')
FROM jsonb_array_elements_text(:keys::jsonb) AS k
JOIN user_activity AS u ON u.user_id = k;

-- name: active_members
-- Everyone in these rooms.
SELECT coalesce(json_agg(m.user_id), '[]')
FROM jsonb_array_elements_text(:keys::jsonb) AS k
CROSS JOIN LATERAL (SELECT x.user_id FROM members AS x WHERE x.channel_id = k AND x.active OFFSET 0) AS m;

-- name: next_position
-- Later than everything so far.
SELECT coalesce(max(position), 0) + 1 FROM channels;

-- name: add_messages
-- New messages, many in one statement.
INSERT INTO messages (channel_id, id, seq, sender_id, at, sent_at, text, preview, thread_id, thread_seq, mentions, silent,
    deleted, backfill, change, position)
SELECT channel_id, id, seq, sender_id, at, sent_at, text, preview, thread_id, thread_seq,
    ARRAY(SELECT jsonb_array_elements_text(mentions::jsonb)), silent, deleted, backfill, change, position
FROM unnest($1::text::text[], $2::text::text[], $3::text::bigint[], $4::text::text[], $5::text::bigint[],
    $6::text::bigint[], $7::text::text[], $8::text::text[], $9::text::text[], $10::text::bigint[], $11::text::text[],
    $12::text::boolean[], $13::text::boolean[], $14::text::boolean[], $15::text::bigint[], $16::text::bigint[])
    AS n (channel_id, id, seq, sender_id, at, sent_at, text, preview, thread_id, thread_seq, mentions, silent, deleted,
    backfill, change, position);

-- name: put_user_rooms
-- Memberships with preferences: (member, preferences).
INSERT INTO members (user_id, channel_id, active, joined_seq, joined_at, skipped, {preferences}, user_change)
SELECT m ->> 'user_id', m ->> 'channel_id', (m ->> 'active')::boolean, (m ->> 'joined_seq')::bigint,
    (m ->> 'joined_at')::bigint, m -> 'skipped', {preferences of p}, 0
FROM (SELECT v -> 0 AS m, v -> 1 AS p FROM jsonb_array_elements(:rows::jsonb) AS v) AS given
ON CONFLICT (user_id, channel_id) DO UPDATE SET
    active = excluded.active, joined_seq = excluded.joined_seq, joined_at = excluded.joined_at,
    skipped = excluded.skipped, {preferences excluded};

-- name: put_pointers
-- Pointers that are merged already. One that was made meanwhile could not be locked, so it is merged once more.
INSERT INTO read_receipts AS r
SELECT v ->> 0, v ->> 1, (v ->> 2)::bigint, (v ->> 3)::bigint, translate(v ->> 4, '[]', '{}')::bigint[], v ->> 5,
    (v ->> 6)::bigint, (v ->> 7)::bigint, 0
FROM jsonb_array_elements(:rows::jsonb) AS v
ORDER BY 1, 2
ON CONFLICT (user_id, channel_id) DO UPDATE SET
    apart = CASE WHEN excluded.epoch > r.epoch THEN excluded.apart
        ELSE ARRAY(SELECT DISTINCT s FROM unnest(r.apart || excluded.apart) AS s
                   WHERE s > greatest(r.last_read_seq, excluded.last_read_seq) ORDER BY s) END,
    last_read_id = CASE WHEN excluded.epoch > r.epoch OR excluded.last_read_seq >= r.last_read_seq
        THEN excluded.last_read_id ELSE r.last_read_id END,
    last_read_at = CASE WHEN excluded.epoch > r.epoch OR excluded.last_read_seq >= r.last_read_seq
        THEN excluded.last_read_at ELSE r.last_read_at END,
    read_at = CASE WHEN excluded.epoch > r.epoch OR excluded.last_read_seq >= r.last_read_seq
        THEN excluded.read_at ELSE r.read_at END,
    last_read_seq = CASE WHEN excluded.epoch > r.epoch THEN excluded.last_read_seq
        ELSE greatest(r.last_read_seq, excluded.last_read_seq) END,
    epoch = excluded.epoch
WHERE excluded.epoch >= r.epoch;

-- name: put_activities
-- What is kept of users.
INSERT INTO user_activity AS u (user_id, last_tap, last_seen, receipts)
SELECT v ->> 0, (v ->> 1)::bigint, (v ->> 2)::bigint, v ->> 3 FROM jsonb_array_elements(:rows::jsonb) AS v
ORDER BY 1
ON CONFLICT (user_id) DO UPDATE SET
    last_tap = greatest(u.last_tap, excluded.last_tap), last_seen = greatest(u.last_seen, excluded.last_seen),
    receipts = excluded.receipts;

-- name: delete_messages
-- Messages by (channel, id) keep their places, and nothing else.
UPDATE messages AS m SET deleted = true, text = NULL, preview = NULL
FROM jsonb_array_elements(:keys::jsonb) AS k
WHERE m.channel_id = k ->> 0 AND m.id = k ->> 1;

-- name: export_rooms
-- Channels, each followed by its threads.
SELECT channel_id, 0, '', json_build_object(
    'type', CASE WHEN type = 'thread' THEN 'thread' ELSE 'channel' END, 'channel_id', channel_id, 'kind', type,
    'name', name, 'avatar', avatar, 'archived', archived, 'deleted', deleted, 'last_seq', last_seq,
    'last_id', last_id, 'last_at', nullif(last_at, 0),
    'latest', CASE WHEN latest_id IS NOT NULL THEN json_build_object(
        'id', latest_id, 'seq', latest_seq, 'at', latest_at, 'sender_id', latest_sender,
        'preview', latest_preview) END)
FROM channels WHERE channel_id > :a
ORDER BY channel_id LIMIT :limit;

-- name: export_unplaced
-- Messages with a place neither in a channel nor in a thread: a thread may hang on them, so they come first.
SELECT channel_id, position, id, json_build_object(
    'type', 'message', 'channel_id', channel_id, 'id', id, 'sender_id', nullif(sender_id, ''), 'at', at,
    'sent_at', sent_at, 'text', text, 'preview', preview, 'mentions', mentions, 'silent', silent, 'deleted', deleted,
    'backfill', backfill)
FROM messages WHERE (channel_id, position, id) > (:a, :b, :c) AND seq IS NULL AND thread_id IS NULL
ORDER BY channel_id, position, id LIMIT :limit;

-- name: export_messages
-- Messages with a place in their channel, by channel and seq.
SELECT channel_id, seq, '', json_build_object(
    'type', 'message', 'channel_id', channel_id, 'id', id, 'seq', seq, 'sender_id', sender_id, 'at', at,
    'sent_at', sent_at, 'text', text, 'preview', preview, 'thread_id', thread_id, 'thread_seq', thread_seq,
    'mentions', mentions, 'silent', silent, 'deleted', deleted)
FROM messages WHERE (channel_id, seq) > (:a, :b) AND seq IS NOT NULL
ORDER BY channel_id, seq LIMIT :limit;

-- name: export_replies
-- Replies that have no place in their channel, by channel, as they came.
SELECT channel_id, position, id, json_build_object(
    'type', 'message', 'channel_id', channel_id, 'id', id, 'sender_id', sender_id, 'at', at,
    'sent_at', sent_at, 'text', text, 'preview', preview, 'thread_id', thread_id, 'thread_seq', thread_seq,
    'mentions', mentions, 'silent', silent, 'deleted', deleted, 'backfill', backfill)
FROM messages WHERE (channel_id, position, id) > (:a, :b, :c) AND seq IS NULL AND thread_id IS NOT NULL
ORDER BY channel_id, position, id LIMIT :limit;

-- name: export_members
-- Members of channels and followers of threads, by room.
SELECT m.channel_id, m.active::int, m.user_id, json_build_object(
    'type', CASE WHEN c.type = 'thread' THEN 'follow' ELSE 'member' END, 'channel_id', m.channel_id,
    'user_id', m.user_id, 'active', m.active, 'joined_seq', m.joined_seq, 'joined_at', m.joined_at,
    'skipped', m.skipped,
    'preferences', json_build_array({preferences of m}),
    'last_read', CASE WHEN r.user_id IS NOT NULL THEN json_build_object(
        'epoch', r.epoch, 'seq', r.last_read_seq, 'apart', r.apart, 'id', r.last_read_id,
        'at', r.last_read_at, 'read_at', r.read_at) END)
FROM members AS m
JOIN channels AS c ON c.channel_id = m.channel_id AND NOT c.deleted
LEFT JOIN read_receipts AS r ON r.user_id = m.user_id AND r.channel_id = m.channel_id
WHERE (m.channel_id, m.active, m.user_id) > (:a, :b::int > 0, :c)
ORDER BY m.channel_id, m.active, m.user_id LIMIT :limit;

-- name: export_pointers
-- Pointers of those who were never members, by room.
SELECT r.channel_id, 0, r.user_id, json_build_object(
    'type', 'pointer', 'channel_id', r.channel_id, 'user_id', r.user_id,
    'last_read', json_build_object(
        'epoch', r.epoch, 'seq', r.last_read_seq, 'apart', r.apart, 'id', r.last_read_id,
        'at', r.last_read_at, 'read_at', r.read_at))
FROM read_receipts AS r
JOIN channels AS c ON c.channel_id = r.channel_id AND NOT c.deleted
LEFT JOIN members AS m ON m.user_id = r.user_id AND m.channel_id = r.channel_id
WHERE (r.channel_id, r.user_id) > (:a, :c) AND m.user_id IS NULL
ORDER BY r.channel_id, r.user_id LIMIT :limit;

-- name: export_users
-- What is kept of users.
SELECT user_id, 0, '', json_build_object(
    'type', 'user', 'user_id', user_id, 'receipts', receipts, 'last_tap', last_tap, 'last_seen', last_seen)
FROM user_activity WHERE user_id > :a
ORDER BY user_id LIMIT :limit;

-- name: rooms_of
-- The rooms that a user has to do with, and whether as a member.
SELECT coalesce(json_agg(json_build_array(channel_id, active::int)), '[]') FROM members WHERE user_id = :user;

-- name: badges_with
-- Who was told that a user wrote.
SELECT coalesce(json_agg(DISTINCT receiver_id), '[]') FROM undelivered WHERE sender_id = :user;

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
UPDATE away_sets SET key = 'erased ' || id, receivers = array_remove(receivers, :user::text)
WHERE channel_id IN (SELECT m.channel_id FROM members AS m WHERE m.user_id = :user)
    AND :user = ANY (receivers);

-- name: erase_activity
-- When a user was last seen, and what the user wants.
DELETE FROM user_activity WHERE user_id = :user;

-- name: erase_reached
-- That a user had a connection when something was stored.
UPDATE log_places SET reached = (
    SELECT coalesce(jsonb_agg(r), '[]') FROM jsonb_array_elements(reached) AS r WHERE r ->> 1 <> :user)
WHERE EXISTS (SELECT FROM jsonb_array_elements(reached) AS r WHERE r ->> 1 = :user);

-- name: erase_once_named
-- Mentions of a user that are none any more.
DELETE FROM once_named WHERE user_id = :user;
