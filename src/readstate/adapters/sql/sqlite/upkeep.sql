-- Dead letters, and what those need who look after the stores. As in queries.sql, keys come and rows go as JSON arrays.

-- name: put_dead_letters
-- Events that could not be repaired; one that is listed already stays as it is.
INSERT INTO dead_letters (topic, event, error, tries, place, failed_at)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
FROM json_each(:rows) WHERE true
ON CONFLICT (topic, place) DO NOTHING;

-- name: dead_letters_after
-- A page of them, in the order in which they were listed.
SELECT json_group_array(json_array(id, topic, event, error, tries, place, failed_at))
FROM (SELECT * FROM dead_letters WHERE id > :after ORDER BY id LIMIT :limit);

-- name: dead_letters
-- Those with these numbers.
SELECT json_group_array(json_array(d.id, d.topic, d.event, d.error, d.tries, d.place, d.failed_at))
FROM (SELECT DISTINCT value FROM json_each(:keys) ORDER BY value) AS k
JOIN dead_letters AS d ON d.id = k.value;

-- name: drop_dead_letters
-- They are dealt with.
DELETE FROM dead_letters WHERE id IN (SELECT value FROM json_each(:keys));

-- name: erase_dead_letters
-- Those that hold either of two pieces of JSON. What is listed may be no JSON at all, so it is not asked as such.
DELETE FROM dead_letters WHERE instr(event, :reads) > 0 OR instr(event, :badge) > 0;

-- name: users_after
-- A page of everyone who is, or was, in a channel or has a pointer; from name to name, not from row to row.
WITH RECURSIVE u (user_id) AS (
    SELECT min(id) FROM (
        SELECT min(user_id) AS id FROM members WHERE user_id > :after
        UNION ALL
        SELECT min(user_id) FROM read_receipts WHERE user_id > :after)
    UNION ALL
    SELECT (SELECT min(id) FROM (
        SELECT min(user_id) AS id FROM members WHERE user_id > u.user_id
        UNION ALL
        SELECT min(user_id) FROM read_receipts WHERE user_id > u.user_id))
    FROM u WHERE u.user_id IS NOT NULL
    LIMIT :limit)
SELECT json_group_array(user_id) FROM u WHERE user_id IS NOT NULL;

-- name: count_users
-- How many they are.
SELECT count(*) FROM (SELECT user_id FROM members UNION SELECT user_id FROM read_receipts);

-- name: channels_after
-- A page of the channels and threads that are there.
SELECT json_group_array(channel_id)
FROM (SELECT channel_id FROM channels WHERE channel_id > :after AND NOT deleted ORDER BY channel_id LIMIT :limit);

-- name: count_channels
-- How many they are.
SELECT count(*) FROM channels WHERE NOT deleted;

-- name: read_states
-- Read pointers by (channel, user).
SELECT json_group_array(json_array(r.channel_id, r.user_id, json_array(
    r.epoch, r.last_read_seq, json(r.apart), r.last_read_id, r.last_read_at, r.read_at, r.user_change)))
FROM json_each(:keys) AS k
JOIN read_receipts AS r ON r.user_id = k.value ->> 1 AND r.channel_id = k.value ->> 0;

-- name: some_user_rooms
-- (user, channel) of some members, taken at random. A store of one process is small enough to draw from all of it.
SELECT json_group_array(json_array(user_id, channel_id))
FROM (SELECT m.user_id, m.channel_id
      FROM (SELECT user_id, channel_id FROM members WHERE active ORDER BY random() LIMIT 2 * :limit) AS m
      JOIN channels AS c ON c.channel_id = m.channel_id
      WHERE NOT c.deleted AND c.type <> 'thread' LIMIT :limit);

-- name: claim_turn
-- Takes the turn at something that is done once in a while; no row: somebody has taken it, and it is not over.
INSERT INTO meta (key, value) VALUES (:turn, :now)
ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE value <= :over OR value > :now
RETURNING value;
