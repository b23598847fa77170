-- Dead letters, and what those need who look after the stores: the same statements as for SQLite (see queries.sql).

-- name: put_dead_letters
-- Events that could not be repaired; one that is listed already stays as it is.
INSERT INTO dead_letters (topic, event, error, tries, place, failed_at)
SELECT r ->> 0, r ->> 1, r ->> 2, (r ->> 3)::int, r ->> 4, (r ->> 5)::bigint
FROM jsonb_array_elements(:rows::jsonb) AS r
ON CONFLICT (topic, place) DO NOTHING;

-- name: dead_letters_after
-- A page of them, in the order in which they were listed.
SELECT coalesce(json_agg(json_build_array(id, topic, event, error, tries, place, failed_at) ORDER BY id), '[]')
FROM (SELECT * FROM dead_letters WHERE id > :after::bigint ORDER BY id LIMIT :limit::bigint) AS d;

-- name: dead_letters
-- Those with these numbers.
SELECT coalesce(json_agg(json_build_array(id, topic, event, error, tries, place, failed_at) ORDER BY id), '[]')
FROM dead_letters WHERE id IN (SELECT k::bigint FROM jsonb_array_elements_text(:keys::jsonb) AS k);

-- name: drop_dead_letters
-- They are dealt with.
DELETE FROM dead_letters WHERE id IN (SELECT k::bigint FROM jsonb_array_elements_text(:keys::jsonb) AS k);

-- name: erase_dead_letters
-- Those that hold either of two pieces of JSON. What is listed may be no JSON at all, so it is not asked as such.
DELETE FROM dead_letters WHERE strpos(event, :reads) > 0 OR strpos(event, :badge) > 0;

-- name: users_after
-- A page of everyone who is, or was, in a channel or has a pointer; from name to name, not from row to row.
WITH RECURSIVE u (user_id) AS (
    SELECT least((SELECT min(user_id) FROM members WHERE user_id > :after),
                 (SELECT min(user_id) FROM read_receipts WHERE user_id > :after))
    UNION ALL
    SELECT least((SELECT min(user_id) FROM members WHERE user_id > u.user_id),
                 (SELECT min(user_id) FROM read_receipts WHERE user_id > u.user_id))
    FROM u WHERE u.user_id IS NOT NULL)
SELECT coalesce(json_agg(user_id), '[]')
FROM (SELECT user_id FROM u WHERE user_id IS NOT NULL LIMIT :limit::bigint) AS page;

-- name: count_users
-- How many they are.
SELECT count(*) FROM (SELECT user_id FROM members UNION SELECT user_id FROM read_receipts) AS u;

-- name: channels_after
-- A page of the channels and threads that are there.
SELECT coalesce(json_agg(channel_id), '[]')
FROM (SELECT channel_id FROM channels WHERE channel_id > :after AND NOT deleted
      ORDER BY channel_id LIMIT :limit::bigint) AS page;

-- name: count_channels
-- How many they are.
SELECT count(*) FROM channels WHERE NOT deleted;

-- name: read_states
-- Read pointers by (channel, user).
SELECT coalesce(json_agg(json_build_array(r.channel_id, r.user_id, json_build_array(
    r.epoch, r.last_read_seq, r.apart, r.last_read_id, r.last_read_at, r.read_at, r.user_change))), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k
CROSS JOIN LATERAL (
    SELECT * FROM read_receipts AS x WHERE x.user_id = k ->> 1 AND x.channel_id = k ->> 0 OFFSET 0) AS r;

-- name: some_user_rooms
-- (user, channel) of some members, taken at random: out of about as many pages of the table as members are wanted, and
-- all of a small one.
SELECT coalesce(json_agg(json_build_array(user_id, channel_id)), '[]')
FROM (SELECT m.user_id, m.channel_id
      FROM (SELECT user_id, channel_id
            FROM members TABLESAMPLE SYSTEM (
                least(100.0, 100.0 * (10 + :limit::bigint) * 8192 / greatest(1, pg_relation_size('members'))))
            WHERE active ORDER BY random() LIMIT 2 * :limit::bigint) AS m
      JOIN channels AS c ON c.channel_id = m.channel_id
      WHERE NOT c.deleted AND c.type <> 'thread' LIMIT :limit::bigint) AS s;

-- name: claim_turn
-- Takes the turn at something that is done once in a while; no row: somebody has taken it, and it is not over.
INSERT INTO meta AS m (key, value) VALUES (:turn, :now::bigint)
ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE m.value <= :over::bigint OR m.value > excluded.value
RETURNING value;
