-- The same statements as for SQLite, under the same names, with the same values and results: keys come as one
-- JSON array, and rows go out as one JSON array. Values are named as in :user; the engine numbers them.
-- LATERAL with LIMIT or OFFSET looks each key up by itself: a join could be answered by reading everything instead.

-- name: lock_channels
-- Nobody else changes these channels until the end of the transaction. Gives those that are there.
SELECT coalesce(json_agg(channel_id), '[]')
FROM (SELECT channel_id FROM channels WHERE channel_id = ANY (:ids::text[]) ORDER BY channel_id FOR UPDATE) AS c;

-- name: lock_new_channels
-- Of those who want to create a channel, one does, and the others see it.
SELECT count(pg_advisory_xact_lock(:space::int, number))
FROM (SELECT DISTINCT hashtext(id) AS number FROM unnest(:ids::text[]) AS id ORDER BY number) AS n;

-- name: lock_members
-- Nobody else changes these (channel, user) until the end of the transaction.
SELECT count(*)
FROM (SELECT FROM members
      WHERE (user_id, channel_id) IN (SELECT k ->> 1, k ->> 0 FROM jsonb_array_elements(:keys::jsonb) AS k)
      ORDER BY user_id, channel_id FOR UPDATE) AS m;

-- name: lock_pointers
-- Nobody else changes the read pointers of these (channel, user) until the end of the transaction.
SELECT count(*)
FROM (SELECT FROM read_receipts
      WHERE (user_id, channel_id) IN (SELECT k ->> 1, k ->> 0 FROM jsonb_array_elements(:keys::jsonb) AS k)
      ORDER BY user_id, channel_id FOR UPDATE) AS r;

-- name: channels
-- Channels by id.
SELECT coalesce(json_agg(json_build_object(
    'channel_id', c.channel_id, 'type', c.type, 'name', c.name, 'avatar', c.avatar, 'archived', c.archived,
    'deleted', c.deleted, 'mode', c.mode, 'member_count', c.member_count, 'last_seq', c.last_seq,
    'last_id', c.last_id, 'last_at', c.last_at, 'change', c.change, 'position', c.position,
    'latest', CASE WHEN c.latest_id IS NOT NULL THEN json_build_object(
        'id', c.latest_id, 'seq', c.latest_seq, 'at', c.latest_at, 'sender_id', c.latest_sender,
        'preview', c.latest_preview) END, 'peers', c.peers)), '[]')
FROM jsonb_array_elements_text(:keys::jsonb) AS k
JOIN channels AS c ON c.channel_id = k;

-- name: messages
-- Messages by (channel, id).
SELECT coalesce(json_agg(found), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k
CROSS JOIN LATERAL (
    SELECT m.channel_id, m.id, m.seq, m.sender_id, m.at, m.sent_at, m.text, m.preview, m.thread_id, m.thread_seq,
        m.mentions, m.silent, m.deleted, m.backfill, m.change
    FROM messages AS m WHERE m.channel_id = k ->> 0 AND m.id = k ->> 1 LIMIT 1) AS found;

-- name: newest_but
-- The newest message of each channel that is not deleted, other than the one named.
SELECT coalesce(json_agg(found), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k
CROSS JOIN LATERAL (
    SELECT m.channel_id, m.id, m.seq, m.sender_id, m.at, m.preview FROM messages AS m
    WHERE m.channel_id = k ->> 0 AND m.seq > 0 AND NOT m.deleted AND m.id <> k ->> 1
    ORDER BY m.seq DESC LIMIT 1) AS found;

-- name: newest_reply_but
-- The newest reply of each thread (channel, thread) that is not deleted, other than the one named.
SELECT coalesce(json_agg(found), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k
CROSS JOIN LATERAL (
    SELECT m.channel_id, m.id, m.seq, m.sender_id, m.at, m.preview, m.thread_id, m.thread_seq FROM messages AS m
    WHERE m.channel_id = k ->> 0 AND m.thread_id = k ->> 1 AND m.thread_seq > 0 AND NOT m.deleted
        AND m.id <> k ->> 2
    ORDER BY m.thread_seq DESC LIMIT 1) AS found;

-- name: members
-- Members, also those who left, by (channel, user); locked, because they are about to change.
SELECT coalesce(json_agg(found), '[]')
FROM (SELECT m.channel_id, m.user_id, m.active, m.joined_seq, m.joined_at, m.skipped, m.joined_position
      FROM jsonb_array_elements(:keys::jsonb) AS k
      JOIN members AS m ON m.user_id = k ->> 1 AND m.channel_id = k ->> 0
      ORDER BY m.user_id, m.channel_id FOR UPDATE OF m) AS found;

-- name: pointers
-- Read pointers by (channel, user); locked, because they are about to change.
SELECT coalesce(json_agg(json_build_array(channel_id, user_id, json_build_array(
    epoch, last_read_seq, apart, last_read_id, last_read_at, read_at, user_change))), '[]')
FROM (SELECT r.*
      FROM jsonb_array_elements(:keys::jsonb) AS k
      JOIN read_receipts AS r ON r.user_id = k ->> 1 AND r.channel_id = k ->> 0
      ORDER BY r.user_id, r.channel_id FOR UPDATE OF r) AS found;

-- name: audience
-- The members of those of these channels that are counted by ledger, and until when they have muted it.
SELECT coalesce(json_agg(json_build_array(m.channel_id, m.user_id, m.muted_until)), '[]')
FROM jsonb_array_elements_text(:keys::jsonb) AS k
JOIN channels AS c ON c.channel_id = k AND c.mode = 'ledger'
CROSS JOIN LATERAL (
    SELECT x.channel_id, x.user_id, x.muted_until FROM members AS x
    WHERE x.channel_id = c.channel_id AND x.active OFFSET 0) AS m;

-- name: followers
-- The followers of these threads (room, channel), and whether they are still in the channel.
SELECT coalesce(json_agg(json_build_array(f.channel_id, f.user_id, coalesce(
    (SELECT m.active FROM members AS m WHERE m.user_id = f.user_id AND m.channel_id = k ->> 1), false))), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k
CROSS JOIN LATERAL (
    SELECT x.channel_id, x.user_id FROM members AS x WHERE x.channel_id = k ->> 0 AND x.active OFFSET 0) AS f;

-- name: everyone
-- Everyone who ever had a membership or a pointer in a channel or in one of its threads.
SELECT coalesce(json_agg(json_build_array(channel_id, user_id)), '[]')
FROM (SELECT channel_id, user_id FROM members WHERE channel_id = :channel
      UNION
      SELECT channel_id, user_id FROM read_receipts WHERE channel_id = :channel
      UNION
      SELECT channel_id, user_id FROM members WHERE channel_id > :first AND channel_id < :last
      UNION
      SELECT channel_id, user_id FROM read_receipts WHERE channel_id > :first AND channel_id < :last) AS e;

-- name: before_last
-- The seq of the n-th newest message that is not deleted.
SELECT seq FROM messages
WHERE channel_id = :channel AND seq > 0 AND NOT deleted
ORDER BY seq DESC LIMIT 1 OFFSET greatest(:n::bigint - 1, 0);

-- name: put_channels
-- Channels as they stand now.
INSERT INTO channels
SELECT channel_id, type, name, avatar, archived, deleted, mode, member_count, last_seq, last_id, last_at, change,
    position, latest ->> 'id', (latest ->> 'seq')::bigint, (latest ->> 'at')::bigint, latest ->> 'sender_id',
    latest ->> 'preview', peers
FROM jsonb_to_recordset(:rows::jsonb) AS r (
    channel_id text, type text, name text, avatar text, archived boolean, deleted boolean, mode text,
    member_count bigint, last_seq bigint, last_id text, last_at bigint, change bigint, position bigint, latest jsonb,
    peers text[])
ON CONFLICT (channel_id) DO UPDATE SET
    type = excluded.type, name = excluded.name, avatar = excluded.avatar, archived = excluded.archived,
    deleted = excluded.deleted, mode = excluded.mode, member_count = excluded.member_count,
    last_seq = excluded.last_seq, last_id = excluded.last_id, last_at = excluded.last_at, change = excluded.change,
    position = excluded.position, latest_id = excluded.latest_id, latest_seq = excluded.latest_seq,
    latest_at = excluded.latest_at, latest_sender = excluded.latest_sender,
    latest_preview = excluded.latest_preview, peers = excluded.peers;

-- name: put_messages
-- New messages, and what edits and deletes make of known ones; id, place and sender never change.
INSERT INTO messages
SELECT channel_id, id, seq, sender_id, at, sent_at, text, preview, thread_id, thread_seq, mentions, silent, deleted,
    backfill, change, position, accepted_at, away_set
FROM jsonb_to_recordset(:rows::jsonb) AS r (
    channel_id text, id text, seq bigint, sender_id text, at bigint, sent_at bigint, text text, preview text,
    thread_id text, thread_seq bigint, mentions text[], silent boolean, deleted boolean, backfill boolean,
    change bigint, position bigint, accepted_at bigint, away_set bigint)
ON CONFLICT (channel_id, id) DO UPDATE SET
    text = excluded.text, preview = excluded.preview, mentions = excluded.mentions, deleted = excluded.deleted;

-- name: put_members
-- Memberships; preferences stay as they are.
INSERT INTO members (user_id, channel_id, active, joined_seq, joined_at, skipped, joined_position)
SELECT user_id, channel_id, active, joined_seq, joined_at, skipped, joined_position
FROM jsonb_to_recordset(:rows::jsonb) AS r (
    channel_id text, user_id text, active boolean, joined_seq bigint, joined_at bigint, skipped jsonb,
    joined_position bigint)
ON CONFLICT (user_id, channel_id) DO UPDATE SET
    active = excluded.active, joined_seq = excluded.joined_seq, joined_at = excluded.joined_at,
    skipped = excluded.skipped, joined_position = excluded.joined_position;

-- name: away_sets
-- Of sets of receivers by (channel, key), those that are there: (channel, key, id, last used).
SELECT coalesce(json_agg(json_build_array(s.channel_id, s.key, s.id, s.used_at)), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k
JOIN away_sets AS s ON s.channel_id = k ->> 0 AND s.key = k ->> 1;

-- name: put_away_sets
-- Sets of receivers (channel, key, receivers, last used).
INSERT INTO away_sets AS s (channel_id, key, receivers, used_at)
SELECT r ->> 0, r ->> 1, ARRAY(SELECT jsonb_array_elements_text(r -> 2)), (r ->> 3)::bigint
FROM jsonb_array_elements(:rows::jsonb) AS r
ON CONFLICT (channel_id, key) DO UPDATE SET used_at = greatest(s.used_at, excluded.used_at);

-- name: put_first_undelivered
-- Messages (channel, sender, accepted at, id, set): a row for each receiver who has none from the sender in the channel
-- since the last tap that is as old or older.
INSERT INTO undelivered
SELECT r.id, (n ->> 2)::bigint, n ->> 1, n ->> 0, n ->> 3
FROM jsonb_array_elements(:rows::jsonb) AS n
JOIN away_sets AS s ON s.id = (n ->> 4)::bigint
CROSS JOIN LATERAL unnest(s.receivers) AS r (id)
WHERE r.id <> n ->> 1 AND (
    SELECT true FROM undelivered AS u
    WHERE u.sender_id = n ->> 1 AND u.channel_id = n ->> 0 AND u.receiver_id = r.id
        AND u.accepted_at <= (n ->> 2)::bigint
        AND u.accepted_at > coalesce((SELECT a.last_tap FROM user_activity AS a WHERE a.user_id = r.id), 0)
    LIMIT 1) IS NULL
ON CONFLICT DO NOTHING;

-- name: put_undelivered_since
-- Messages (channel, sender, accepted at, id, set, the first one's time): a row for each receiver who has tapped since.
INSERT INTO undelivered
SELECT a.user_id, (n ->> 2)::bigint, n ->> 1, n ->> 0, n ->> 3
FROM user_activity AS a
CROSS JOIN jsonb_array_elements(:rows::jsonb) AS n
JOIN away_sets AS s ON s.id = (n ->> 4)::bigint
WHERE a.last_tap >= :since::bigint AND a.last_tap >= (n ->> 5)::bigint AND a.user_id <> n ->> 1
    AND a.user_id = ANY (s.receivers)
ON CONFLICT DO NOTHING;

-- name: put_undelivered
-- Who wrote to whom while away.
INSERT INTO undelivered
SELECT receiver_id, accepted_at, sender_id, channel_id, message_id
FROM jsonb_to_recordset(:rows::jsonb) AS r (
    receiver_id text, accepted_at bigint, sender_id text, channel_id text, message_id text)
ON CONFLICT DO NOTHING;

-- name: living_messages
-- Of messages by (channel, id), those that are there and not deleted, and who sent them.
SELECT coalesce(json_agg(json_build_array(found.channel_id, found.id, found.sender_id)), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k
CROSS JOIN LATERAL (
    SELECT m.channel_id, m.id, m.sender_id
    FROM messages AS m WHERE m.channel_id = k ->> 0 AND m.id = k ->> 1 AND NOT m.deleted LIMIT 1) AS found;

-- name: merge_receipts
-- The same as `merge` in domain/rules.py: the higher epoch wins whole; in the same epoch the larger seq, and both `apart`.
-- Rows come sorted by their keys, so that two of these never wait for each other in a circle.
-- The last parameter is the number of the lease that the process must have, if the statement is a transaction by itself.
INSERT INTO read_receipts AS r
SELECT unnest($1::text::text[]), unnest($2::text::text[]), unnest($3::text::bigint[]), unnest($4::text::bigint[]),
    translate(unnest($5::text::text[]), '[]', '{}')::bigint[], unnest($6::text::text[]), unnest($7::text::bigint[]),
    unnest($8::text::bigint[]), unnest($9::text::bigint[])
FROM (SELECT CASE WHEN $10::bigint IS NOT NULL THEN require_lease($10) END) AS lease
ON CONFLICT (user_id, channel_id) DO UPDATE SET
    apart = CASE
        WHEN excluded.epoch > r.epoch THEN excluded.apart
        WHEN r.apart = '{}' AND excluded.apart = '{}' THEN r.apart
        ELSE ARRAY(SELECT DISTINCT s FROM unnest(r.apart || excluded.apart) AS s
                   WHERE s > greatest(r.last_read_seq, excluded.last_read_seq) ORDER BY s) END,
    last_read_id = CASE WHEN excluded.epoch > r.epoch OR excluded.last_read_seq > r.last_read_seq
        THEN excluded.last_read_id ELSE r.last_read_id END,
    last_read_at = CASE WHEN excluded.epoch > r.epoch OR excluded.last_read_seq > r.last_read_seq
        THEN excluded.last_read_at ELSE r.last_read_at END,
    read_at = CASE WHEN excluded.epoch > r.epoch OR excluded.last_read_seq > r.last_read_seq THEN excluded.read_at
        WHEN EXISTS (SELECT FROM unnest(excluded.apart) AS s WHERE s > r.last_read_seq AND s <> ALL (r.apart))
        THEN greatest(r.read_at, excluded.read_at) ELSE r.read_at END,
    last_read_seq = CASE WHEN excluded.epoch > r.epoch THEN excluded.last_read_seq
        ELSE greatest(r.last_read_seq, excluded.last_read_seq) END,
    epoch = excluded.epoch,
    user_change = greatest(r.user_change, excluded.user_change)
WHERE excluded.epoch > r.epoch
    OR (excluded.epoch = r.epoch AND (excluded.last_read_seq > r.last_read_seq OR excluded.apart <> '{}'));

-- name: merge_pointers
-- The same for rows without `apart`, in a quarter less time.
INSERT INTO read_receipts AS r
SELECT unnest($1::text::text[]), unnest($2::text::text[]), unnest($3::text::bigint[]), unnest($4::text::bigint[]),
    '{}', unnest($5::text::text[]), unnest($6::text::bigint[]), unnest($7::text::bigint[]), unnest($8::text::bigint[])
FROM (SELECT CASE WHEN $9::bigint IS NOT NULL THEN require_lease($9) END) AS lease
ON CONFLICT (user_id, channel_id) DO UPDATE SET
    apart = CASE WHEN cardinality(r.apart) = 0 OR excluded.epoch > r.epoch THEN excluded.apart
        ELSE ARRAY(SELECT s FROM unnest(r.apart) AS s WHERE s > excluded.last_read_seq ORDER BY s) END,
    last_read_id = excluded.last_read_id,
    last_read_at = excluded.last_read_at,
    read_at = excluded.read_at,
    last_read_seq = excluded.last_read_seq,
    epoch = excluded.epoch,
    user_change = greatest(r.user_change, excluded.user_change)
WHERE excluded.epoch > r.epoch OR (excluded.epoch = r.epoch AND excluded.last_read_seq > r.last_read_seq);

-- name: put_preferences
-- What a member wants of a channel. A late write that a newer one has overtaken does nothing.
UPDATE members SET {preferences given}, user_change = :change
WHERE user_id = :user AND channel_id = :channel AND user_change <= :change;

-- name: load_user
-- Every channel that a user is in, has left, or has a pointer in.
SELECT coalesce(json_agg(json_build_array(
    c.channel_id, coalesce(m.active, false), c.mode, c.change, coalesce(r.last_read_seq, 0) >= c.last_seq,
    json_build_array(
        coalesce(r.epoch, 0), coalesce(r.last_read_seq, 0), coalesce(r.apart, '{}'), r.last_read_id, r.last_read_at,
        coalesce(r.read_at, 0), greatest(m.user_change, r.user_change)),
    json_build_array({preferences of m}),
    coalesce(c.latest_at, 0), c.archived)), '[]')
FROM (SELECT * FROM members WHERE user_id = :user) AS m
FULL JOIN (SELECT * FROM read_receipts WHERE user_id = :user) AS r ON r.channel_id = m.channel_id
JOIN channels AS c ON c.channel_id = coalesce(m.channel_id, r.channel_id);

-- name: unread_page
-- What is unread for a user: [sums of channels without a mute or `count`, the other unread channels, rooms of threads
-- with replies after the pointer in channels of the user, the unread channels with the latest activity]. Of a channel's
-- unread messages the newest :cap + 1 count; their mentions are those of the newest :cap, which a ledger would keep.
WITH rooms AS MATERIALIZED (
    SELECT k.channel_id, coalesce(c.latest_at, 0) AS latest_at, c.archived, c.type = 'thread' AS thread,
        k.muted_until > 0 OR k.count <> 'all' AS special, coalesce(r.last_read_seq, 0) AS seq,
        coalesce(r.apart, '{}') AS apart
    FROM members AS k
    JOIN channels AS c ON c.channel_id = k.channel_id
    LEFT JOIN read_receipts AS r ON r.user_id = :user AND r.channel_id = k.channel_id
    WHERE k.user_id = :user AND k.active AND NOT c.deleted AND c.last_seq > coalesce(r.last_read_seq, 0)),
counted AS MATERIALIZED (
    SELECT k.*, m.*
    FROM rooms AS k
    CROSS JOIN LATERAL (
        SELECT count(*) AS n, count(*) FILTER (WHERE x.mention AND x.place <= :cap::bigint) AS mentions,
            (array_agg(json_build_array(x.seq, x.id, x.at) ORDER BY x.seq DESC))[least(count(*), :cap::bigint)] AS first
        FROM (SELECT x.seq, x.id, x.at, :user = ANY (x.mentions) OR '@channel' = ANY (x.mentions) AS mention,
                  row_number() OVER (ORDER BY x.seq DESC) AS place
              FROM messages AS x
              WHERE x.channel_id = k.channel_id AND x.seq > k.seq AND NOT x.deleted AND NOT x.silent
                  AND x.sender_id <> :user AND x.seq <> ALL (k.apart)
              ORDER BY x.seq DESC LIMIT :cap::bigint + 1) AS x) AS m
    WHERE NOT k.thread AND m.n > 0)
SELECT json_build_array(
    (SELECT json_build_array(
        coalesce(sum(least(n, :cap::bigint)), 0), coalesce(sum(mentions), 0), count(*),
        coalesce(bool_or(n > :cap::bigint), false))
     FROM counted WHERE NOT special AND NOT archived),
    (SELECT coalesce(json_agg(json_build_array(
        json_build_array({preferences of m}), least(k.n, :cap::bigint), k.mentions, k.n > :cap::bigint)), '[]')
     FROM counted AS k JOIN members AS m ON m.user_id = :user AND m.channel_id = k.channel_id
     WHERE k.special AND NOT k.archived),
    (SELECT coalesce(json_agg(json_build_array(k.channel_id, k.seq, k.apart)), '[]')
     FROM rooms AS k
     WHERE k.thread AND EXISTS (
         SELECT FROM members AS m WHERE m.user_id = :user AND m.active
             AND m.channel_id = split_part(k.channel_id, chr(31), 1))),
    (SELECT coalesce(json_agg(json_build_array(
        json_build_object(
            'channel_id', c.channel_id, 'type', c.type, 'name', c.name, 'avatar', c.avatar, 'archived', c.archived,
            'deleted', c.deleted, 'mode', c.mode, 'member_count', c.member_count, 'last_seq', c.last_seq,
            'last_id', c.last_id, 'last_at', c.last_at, 'change', c.change, 'position', c.position,
            'latest', CASE WHEN c.latest_id IS NOT NULL THEN json_build_object(
                'id', c.latest_id, 'seq', c.latest_seq, 'at', c.latest_at, 'sender_id', c.latest_sender,
                'preview', c.latest_preview) END, 'peers', c.peers),
        json_build_array(
            coalesce(r.epoch, 0), coalesce(r.last_read_seq, 0), coalesce(r.apart, '{}'), r.last_read_id,
            r.last_read_at, coalesce(r.read_at, 0), greatest(m.user_change, r.user_change)),
        json_build_array({preferences of m}), k.n, k.mentions, k.first)
        ORDER BY k.latest_at DESC, k.channel_id), '[]')
     FROM (SELECT * FROM counted ORDER BY latest_at DESC, channel_id LIMIT :limit) AS k
     JOIN channels AS c ON c.channel_id = k.channel_id
     JOIN members AS m ON m.user_id = :user AND m.channel_id = k.channel_id
     LEFT JOIN read_receipts AS r ON r.user_id = :user AND r.channel_id = k.channel_id));

-- name: ledger_entries
-- The newest unread messages of each (index, user, channel, seq, only by name, apart), oldest first. So many more
-- are taken as were read one by one, which are then left out all at once.
WITH k AS MATERIALIZED (
    SELECT (v ->> 0)::int AS i, v ->> 1 AS "user", v ->> 2 AS channel, (v ->> 3)::bigint AS seq,
        v ->> 4 = '1' AS only_named, v -> 5 AS apart
    FROM jsonb_array_elements(:keys::jsonb) AS v),
found AS (
    SELECT k.i, m.seq, m.id, m.at, k.only_named,
        m.mentions <> '{}' AND (k."user" = ANY (m.mentions) OR (NOT k.only_named AND '@channel' = ANY (m.mentions)))
            AS mention
    FROM k
    CROSS JOIN LATERAL (
        SELECT x.seq, x.id, x.at, x.mentions FROM messages AS x
        WHERE x.channel_id = k.channel AND x.seq > k.seq AND NOT x.deleted AND NOT x.silent
            AND x.sender_id <> k."user"
        ORDER BY x.seq DESC LIMIT :cap::bigint + 1 + jsonb_array_length(k.apart)) AS m)
SELECT coalesce(json_agg(json_build_array(i, json_build_array(seq, id, at, mention)) ORDER BY i, seq), '[]')
FROM found
WHERE (mention OR NOT only_named)
    AND (i, seq) NOT IN (SELECT i, s::bigint FROM k CROSS JOIN jsonb_array_elements_text(k.apart) AS s);

-- name: thread_entries
-- The newest unread replies of each (index, user, channel, seq, thread, apart), oldest first.
WITH k AS MATERIALIZED (
    SELECT (v ->> 0)::int AS i, v ->> 1 AS "user", v ->> 2 AS channel, (v ->> 3)::bigint AS seq, v ->> 4 AS thread,
        v -> 5 AS apart
    FROM jsonb_array_elements(:keys::jsonb) AS v),
found AS (
    SELECT k.i, m.thread_seq AS seq, m.id, m.at, k."user" = ANY (m.mentions) AS mention
    FROM k
    CROSS JOIN LATERAL (
        SELECT x.thread_seq, x.id, x.at, x.mentions FROM messages AS x
        WHERE x.channel_id = k.channel AND x.thread_id = k.thread AND x.thread_seq > k.seq
            AND NOT x.deleted AND NOT x.silent AND x.sender_id <> k."user"
        ORDER BY x.thread_seq DESC LIMIT :cap::bigint + 1 + jsonb_array_length(k.apart)) AS m)
SELECT coalesce(json_agg(json_build_array(i, json_build_array(seq, id, at, mention)) ORDER BY i, seq), '[]')
FROM found
WHERE (i, seq) NOT IN (SELECT i, s::bigint FROM k CROSS JOIN jsonb_array_elements_text(k.apart) AS s);

-- name: changes
-- The change numbers of channels.
SELECT coalesce(json_agg(json_build_array(c.channel_id, c.change)), '[]')
FROM jsonb_array_elements_text(:keys::jsonb) AS k
JOIN channels AS c ON c.channel_id = k;

-- name: timeline
-- The newest countable messages of a channel, newest first.
SELECT coalesce(json_agg(json_build_array(seq, id, at, '@channel' = ANY (mentions)) ORDER BY seq DESC), '[]')
FROM (SELECT seq, id, at, mentions FROM messages
      WHERE channel_id = :channel AND seq > 0 AND NOT deleted AND NOT silent
      ORDER BY seq DESC LIMIT :limit) AS m;

-- name: by_seq
-- Places by (channel, seq).
SELECT coalesce(json_agg(json_build_array(m.channel_id, m.seq, m.id, m.at)), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k
CROSS JOIN LATERAL (
    SELECT x.channel_id, x.seq, x.id, x.at FROM messages AS x
    WHERE x.channel_id = k ->> 0 AND x.seq = (k ->> 1)::bigint LIMIT 1) AS m;

-- name: own_seqs
-- The newest of a user's own messages in a channel.
SELECT coalesce(json_agg(seq ORDER BY seq DESC), '[]')
FROM (SELECT seq FROM messages
      WHERE channel_id = :channel AND sender_id = :user AND seq >= :since
      ORDER BY seq DESC LIMIT :cap) AS m;

-- name: unread_oldest
-- Unread messages of a user in a channel, oldest first.
SELECT coalesce(json_agg(found ORDER BY seq), '[]')
FROM (SELECT channel_id, id, seq, sender_id, at, sent_at, text, preview, thread_id, thread_seq, mentions, silent,
          deleted, backfill, change
      FROM messages
      WHERE channel_id = :channel AND seq > :seq AND sender_id <> :user AND NOT deleted AND NOT silent
          AND seq <> ALL (translate(:apart::text, '[]', '{}')::bigint[]) AND at > :after AND at < :before
      ORDER BY seq LIMIT :limit) AS found;

-- name: unread_newest
-- Unread messages of a user in a channel, newest first.
SELECT coalesce(json_agg(found ORDER BY seq DESC), '[]')
FROM (SELECT channel_id, id, seq, sender_id, at, sent_at, text, preview, thread_id, thread_seq, mentions, silent,
          deleted, backfill, change
      FROM messages
      WHERE channel_id = :channel AND seq > :seq AND sender_id <> :user AND NOT deleted AND NOT silent
          AND seq <> ALL (translate(:apart::text, '[]', '{}')::bigint[]) AND at > :after AND at < :before
      ORDER BY seq DESC LIMIT :limit) AS found;

-- name: once_members
-- Those of some users who were in a channel and have left it.
SELECT coalesce(json_agg(user_id), '[]')
FROM members WHERE channel_id = :channel AND NOT active AND user_id IN (SELECT value FROM jsonb_array_elements_text(:users::jsonb));

-- name: members_page
-- Members of a channel by id.
SELECT coalesce(json_agg(found ORDER BY user_id), '[]')
FROM (SELECT channel_id, user_id, active, joined_seq, joined_at, skipped FROM members
      WHERE channel_id = :channel AND active AND user_id > :after
      ORDER BY user_id LIMIT :limit) AS found;

-- name: breakdown
-- The messages after a pointer, each in one group: own, deleted, silent, read one by one, unread; and mentions.
SELECT json_build_array(
    count(*),
    count(*) FILTER (WHERE own),
    count(*) FILTER (WHERE NOT own AND deleted),
    count(*) FILTER (WHERE NOT own AND NOT deleted AND silent),
    count(*) FILTER (WHERE NOT own AND NOT deleted AND NOT silent AND apart),
    count(*) FILTER (WHERE NOT own AND NOT deleted AND NOT silent AND NOT apart),
    count(*) FILTER (WHERE NOT own AND NOT deleted AND NOT silent AND NOT apart AND mention))
FROM (SELECT sender_id = :user AS own, deleted, silent,
          seq = ANY (translate(:apart::text, '[]', '{}')::bigint[]) AS apart,
          mentions && ARRAY[:user, '@channel'] AS mention
      FROM messages WHERE channel_id = :channel AND seq > :seq) AS m;

-- name: explain_facts
-- What explain shows besides the count.
SELECT json_build_array(c.last_seq, coalesce(m.joined_seq, 0), c.change)
FROM channels AS c
LEFT JOIN members AS m ON m.user_id = :user AND m.channel_id = c.channel_id
WHERE c.channel_id = :channel;

-- name: save_undo
-- What an undo needs.
INSERT INTO undo (token, user_id, expires_at, items) VALUES (:token, :user, :expires_at, :items::jsonb)
ON CONFLICT (token) DO UPDATE SET
    user_id = excluded.user_id, expires_at = excluded.expires_at, items = excluded.items;

-- name: expire_undo
-- Undo tokens that are over.
DELETE FROM undo WHERE token IN (
    SELECT token FROM undo WHERE expires_at <= :now ORDER BY token FOR UPDATE SKIP LOCKED);

-- name: drop_undo
-- An undo token that was used.
DELETE FROM undo WHERE token = :token;

-- name: load_undo
-- What an undo needs, if it is not over.
SELECT items FROM undo WHERE token = :token AND user_id = :user AND expires_at > :now;

-- name: store_id
-- Which store this is.
SELECT value FROM meta WHERE key = 'store';

-- name: secret
-- A key that the service has made for itself.
SELECT value FROM secrets WHERE name = :secret;

-- name: make_secret
-- The first one stays.
INSERT INTO secrets (name, value) VALUES (:secret, :bytes::bytea) ON CONFLICT (name) DO NOTHING;

-- name: next_generation
-- Counts the times that the hot state began empty.
UPDATE meta SET value = greatest(value, :above::bigint) + 1 WHERE key = 'generation' RETURNING value;

-- name: slots
-- The generations of the hot store by slot.
SELECT coalesce(json_agg(json_build_array(first, last, number, run) ORDER BY first), '[]') FROM slots;

-- name: hold_slots
-- No other process renews slots until the transaction ends.
UPDATE meta SET value = value WHERE key = 'generation' RETURNING 1;

-- name: drop_slots
-- Before all of them are written again.
DELETE FROM slots;

-- name: put_slots
-- The generations of the hot store by slot, in place of those before.
INSERT INTO slots (first, last, number, run)
SELECT (k ->> 0)::int, (k ->> 1)::int, (k ->> 2)::bigint, k ->> 3 FROM json_array_elements(:rows::json) AS k;

-- name: fresh
-- The highest generation that is fresh.
SELECT coalesce(max(value), 0) FROM meta WHERE key = 'fresh';

-- name: note_fresh
-- A higher one stays.
INSERT INTO meta AS m (key, value) VALUES ('fresh', :number::bigint)
ON CONFLICT (key) DO UPDATE SET value = greatest(m.value, excluded.value);

-- name: note_spool
-- Reads wait in a spool; that counts until a time.
INSERT INTO meta (key, value) VALUES ('spool:' || :spool, :until::bigint)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: drop_spool
-- Nothing waits there any more.
DELETE FROM meta WHERE key = 'spool:' || :spool;

-- name: spools
-- How many spools reads wait in.
SELECT count(*) FROM meta WHERE key LIKE 'spool:%' AND value > :now::bigint;

-- name: touch
-- A write that changes nothing: fails if the store cannot be written. It needs no further room: see `spill`.
UPDATE meta SET value = value WHERE key = 'generation' RETURNING 1;

-- name: last_position
-- Where in the log the last change stands.
SELECT coalesce(max(position), 0) FROM channels;

-- name: messages_since
-- The newest of a channel's messages that came after a log position: order by seq is order in the log, so
-- that none is read but the newest.
SELECT coalesce(json_agg(found), '[]')
FROM (SELECT channel_id, id, seq, sender_id, at, preview, thread_id, thread_seq, mentions, silent, deleted, position
      FROM messages WHERE channel_id = :channel AND seq > 0 ORDER BY seq DESC LIMIT :limit) AS found
WHERE position > :position;

-- name: replies_since
-- A channel's replies in threads only that came after a log position, in order.
SELECT coalesce(json_agg(found ORDER BY position), '[]')
FROM (SELECT channel_id, id, seq, sender_id, at, preview, thread_id, thread_seq, mentions, silent, deleted, position
      FROM messages
      WHERE channel_id = :channel AND seq IS NULL AND position > :position AND NOT backfill
      ORDER BY position LIMIT :limit) AS found;

-- name: joins
-- Where a user's memberships of these channels begin: (channel, seq, log position).
SELECT coalesce(json_agg(json_build_array(channel_id, joined_seq, joined_position)), '[]')
FROM members
WHERE user_id = :user AND active AND channel_id IN (SELECT jsonb_array_elements_text(:keys::jsonb));

-- name: receipts_since
-- Pointers that others moved since a time in the channels of a user that have few enough members, without those
-- who keep theirs private: (channel, user, seq, id, read at, what joins alone marked).
SELECT coalesce(json_agg(json_build_array(channel_id, user_id, last_read_seq, last_read_id, read_at, skipped)
    ORDER BY read_at), '[]')
FROM (SELECT r.*, o.skipped
      FROM members AS m
      JOIN channels AS c ON c.channel_id = m.channel_id AND c.member_count <= :most AND NOT c.deleted
          AND c.type <> 'thread'
      JOIN read_receipts AS r ON r.channel_id = m.channel_id AND r.read_at >= :since AND r.user_id <> :user
      JOIN members AS o ON o.user_id = r.user_id AND o.channel_id = r.channel_id AND o.active
          AND o.receipts = 'public'
      LEFT JOIN user_activity AS u ON u.user_id = r.user_id
      WHERE m.user_id = :user AND m.active AND coalesce(u.receipts, 'public') = 'public'
      ORDER BY r.read_at LIMIT :limit) AS found;

-- name: public_readers
-- Of these (user, channel), the members who don't keep receipts private, and what joins alone marked for them.
SELECT coalesce(json_agg(json_build_array(m.user_id, m.channel_id, m.skipped)), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k
JOIN members AS m ON m.user_id = k ->> 0 AND m.channel_id = k ->> 1 AND m.active AND m.receipts = 'public'
LEFT JOIN user_activity AS u ON u.user_id = m.user_id
WHERE coalesce(u.receipts, 'public') = 'public';

-- name: wrote_since
-- Of these (channel, seq), those in which somebody other than the user has written after the seq.
SELECT coalesce(json_agg(k ->> 0), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k
CROSS JOIN LATERAL (
    SELECT FROM messages AS m
    WHERE m.channel_id = k ->> 0 AND m.seq > (k ->> 1)::bigint AND m.sender_id <> :user
    ORDER BY m.seq LIMIT 1) AS written;

-- name: seen_count
-- How many members other than the sender have read a place, without those for whom a join alone marked it and those
-- who keep it private.
SELECT count(*)
FROM members AS m
JOIN read_receipts AS r ON r.user_id = m.user_id AND r.channel_id = m.channel_id
LEFT JOIN user_activity AS u ON u.user_id = m.user_id
WHERE m.channel_id = :channel AND m.active AND m.user_id <> :sender
    AND m.receipts = 'public' AND coalesce(u.receipts, 'public') = 'public'
    AND (r.last_read_seq >= :seq OR :seq = ANY (r.apart))
    AND NOT EXISTS (SELECT FROM jsonb_array_elements(m.skipped) AS s
                    WHERE (s ->> 0)::bigint < :seq AND (s ->> 1)::bigint >= :seq);

-- name: readers
-- The pointers of a channel's members, without those who keep theirs private, and what joins alone marked.
SELECT coalesce(json_agg(json_build_array(m.user_id, json_build_array(
    coalesce(r.epoch, 0), coalesce(r.last_read_seq, 0), coalesce(r.apart, '{}'), r.last_read_id, r.last_read_at,
    coalesce(r.read_at, 0)), m.skipped)), '[]')
FROM members AS m
LEFT JOIN read_receipts AS r ON r.user_id = m.user_id AND r.channel_id = m.channel_id
LEFT JOIN user_activity AS u ON u.user_id = m.user_id
WHERE m.channel_id = :channel AND m.active
    AND m.receipts = 'public' AND coalesce(u.receipts, 'public') = 'public';

-- name: cut_skipped
-- What joins marked, from a seq on, is marked by them no more: the user has marked it unread.
UPDATE members SET skipped = coalesce((
    SELECT jsonb_agg(jsonb_build_array(s -> 0, least((s ->> 1)::bigint, :seq::bigint - 1)) ORDER BY place)
    FROM jsonb_array_elements(skipped) WITH ORDINALITY AS x (s, place)
    WHERE (s ->> 0)::bigint < :seq::bigint - 1), '[]')
WHERE user_id = :user AND channel_id = :channel AND skipped <> '[]';

-- name: activity
-- What is kept of a user: last tap, last seen, receipts.
SELECT last_tap, last_seen, receipts FROM user_activity WHERE user_id = :user;

-- name: save_seen
-- When a user was last online.
INSERT INTO user_activity AS u (user_id, last_seen) VALUES (:user, :at)
ON CONFLICT (user_id) DO UPDATE SET last_seen = greatest(u.last_seen, excluded.last_seen);

-- name: save_receipts
-- Whether a user's receipts are public. A late write that a newer one has overtaken does nothing.
INSERT INTO user_activity AS u (user_id, receipts, user_change) VALUES (:user, :receipts, :change)
ON CONFLICT (user_id) DO UPDATE SET receipts = excluded.receipts, user_change = excluded.user_change
WHERE u.user_change <= excluded.user_change;

-- name: begin_tap
-- The tap that stands; nobody else taps until this is over.
INSERT INTO user_activity AS u (user_id) VALUES (:user)
ON CONFLICT (user_id) DO UPDATE SET last_tap = u.last_tap RETURNING last_tap;

-- name: save_tap
-- The badge was tapped.
UPDATE user_activity SET last_tap = greatest(last_tap, :at) WHERE user_id = :user;

-- name: drop_tapped_ahead
-- What a tap has shown that is later than it can be, and so was accepted by the same wrong clock.
DELETE FROM undelivered WHERE receiver_id = :user AND accepted_at > :latest
    AND accepted_at <= (SELECT last_tap FROM user_activity WHERE user_id = :user);

-- name: bound_tap
-- A tap that is later than it can be counts as one of now.
UPDATE user_activity SET last_tap = :now WHERE user_id = :user AND last_tap > :latest;

-- name: badge_count
-- How many different people wrote to a user while away, since the last tap.
SELECT count(DISTINCT sender_id) FROM undelivered
WHERE receiver_id = :user
    AND accepted_at > coalesce((SELECT last_tap FROM user_activity WHERE user_id = :user), 0);

-- name: badge_senders
-- Who they are.
SELECT coalesce(json_agg(DISTINCT sender_id), '[]') FROM undelivered
WHERE receiver_id = :user
    AND accepted_at > coalesce((SELECT last_tap FROM user_activity WHERE user_id = :user), 0);

-- name: receivers_of_gone
-- Of notes (receiver, accepted at, sender, channel), the receivers of those for whom no row stands any more: one look at
-- the index each.
SELECT coalesce(json_agg(DISTINCT k ->> 0), '[]') FROM jsonb_array_elements(:keys::jsonb) AS k
WHERE (SELECT true FROM undelivered AS u
       WHERE u.sender_id = k ->> 2 AND u.channel_id = k ->> 3 AND u.receiver_id = k ->> 0
           AND u.accepted_at <= (k ->> 1)::bigint
       LIMIT 1) IS NULL;

-- name: tapped_count
-- How many different people wrote between two taps.
SELECT count(DISTINCT sender_id) FROM undelivered
WHERE receiver_id = :user AND accepted_at > :since AND accepted_at <= :until;

-- name: tapped_messages
-- What they wrote in channels that the user is in now, newest first, from a place on: the messages that have a row, and
-- those of the same sender in the same channel, from the first of these on, in whose set of receivers the user is.
WITH here AS MATERIALIZED (
    SELECT u.sender_id, u.channel_id, u.message_id AS id, u.accepted_at, coalesce(x.seq, 0) AS seq
    FROM undelivered AS u
    LEFT JOIN LATERAL (
        SELECT m.seq FROM messages AS m WHERE m.channel_id = u.channel_id AND m.id = u.message_id LIMIT 1) AS x ON true
    WHERE u.receiver_id = :user AND u.accepted_at > :since AND u.accepted_at <= :until
        AND (SELECT r.active FROM members AS r WHERE r.user_id = :user AND r.channel_id = u.channel_id)),
pairs AS MATERIALIZED (
    SELECT sender_id, channel_id, min(accepted_at) AS accepted_at, min(seq) AS seq
    FROM here GROUP BY sender_id, channel_id),
sets AS MATERIALIZED (
    SELECT s.id FROM (SELECT DISTINCT channel_id FROM pairs) AS p
    CROSS JOIN LATERAL (
        SELECT w.id FROM away_sets AS w WHERE w.channel_id = p.channel_id AND :user = ANY (w.receivers) OFFSET 0) AS s),
shown AS (
    SELECT channel_id, id, accepted_at FROM here
    UNION
    SELECT x.channel_id, x.id, x.accepted_at FROM pairs AS p
    CROSS JOIN LATERAL (
        SELECT m.channel_id, m.id, m.accepted_at, m.away_set FROM messages AS m
        WHERE m.channel_id = p.channel_id AND m.sender_id = p.sender_id AND m.seq >= p.seq
            AND m.accepted_at >= p.accepted_at AND m.accepted_at <= :until OFFSET 0) AS x
    WHERE x.away_set IN (SELECT id FROM sets)
    UNION
    SELECT x.channel_id, x.id, x.accepted_at FROM pairs AS p
    CROSS JOIN LATERAL (
        SELECT m.channel_id, m.id, m.accepted_at, m.away_set FROM messages AS m
        WHERE m.channel_id = p.channel_id AND m.sender_id = p.sender_id AND m.seq IS NULL
            AND m.accepted_at >= p.accepted_at AND m.accepted_at <= :until OFFSET 0) AS x
    WHERE x.away_set IN (SELECT id FROM sets))
SELECT coalesce(json_agg(found ORDER BY accepted_at DESC, at DESC, channel_id DESC, id DESC), '[]')
FROM (SELECT m.channel_id, m.id, m.seq, m.sender_id, m.at, m.sent_at, m.text, m.preview, m.thread_id, m.thread_seq,
          m.mentions, m.silent, m.deleted, m.backfill, m.change, n.accepted_at
      FROM shown AS n
      CROSS JOIN LATERAL (
          SELECT * FROM messages AS x WHERE x.channel_id = n.channel_id AND x.id = n.id LIMIT 1) AS m
      WHERE (n.accepted_at, m.at, m.channel_id, m.id) < (:accepted_at, :at, :channel_id, :message_id)
      ORDER BY n.accepted_at DESC, m.at DESC, m.channel_id DESC, m.id DESC LIMIT :limit) AS found;

-- name: lock_tap
-- No transaction decides whether a user has a row already until this one ends, and the other way round.
SELECT pg_advisory_xact_lock(:space::int, :bucket::int);

-- name: lock_taps
-- No user taps until the end of the transaction.
SELECT count(pg_advisory_xact_lock_shared(:space::int, bucket)) FROM generate_series(0, :buckets::int - 1) AS bucket;

-- name: later_than_tap
-- What was accepted after a tap and has no row because of one that the tap ends: (channel, id). Before that, of the
-- channels concerned, up to where this has looked: (channel, seq, position).
WITH pairs AS MATERIALIZED (
    SELECT u.sender_id, u.channel_id, min(coalesce(x.seq, 0)) AS seq
    FROM undelivered AS u
    LEFT JOIN LATERAL (
        SELECT m.seq FROM messages AS m WHERE m.channel_id = u.channel_id AND m.id = u.message_id LIMIT 1) AS x ON true
    WHERE u.receiver_id = :user AND u.accepted_at > :since AND u.accepted_at <= :at
    GROUP BY u.sender_id, u.channel_id),
sets AS MATERIALIZED (
    SELECT s.id FROM (SELECT DISTINCT channel_id FROM pairs) AS p
    CROSS JOIN LATERAL (
        SELECT w.id FROM away_sets AS w WHERE w.channel_id = p.channel_id AND :user = ANY (w.receivers) OFFSET 0) AS s)
SELECT json_build_array(
    (SELECT coalesce(json_agg(json_build_array(c.channel_id, c.last_seq, c.position)), '[]')
     FROM (SELECT DISTINCT channel_id FROM pairs) AS p
     CROSS JOIN LATERAL (SELECT * FROM channels AS y WHERE y.channel_id = p.channel_id LIMIT 1) AS c),
    (SELECT coalesce(json_agg(json_build_array(x.channel_id, x.id)), '[]')
     FROM pairs AS p
     CROSS JOIN LATERAL (
         (SELECT * FROM messages AS m
          WHERE m.channel_id = p.channel_id AND m.sender_id = p.sender_id AND m.seq >= p.seq AND m.accepted_at > :at
          OFFSET 0)
         UNION ALL
         (SELECT * FROM messages AS m
          WHERE m.channel_id = p.channel_id AND m.sender_id = p.sender_id AND m.seq IS NULL AND m.accepted_at > :at
          OFFSET 0)) AS x
     WHERE x.away_set IN (SELECT id FROM sets)));

-- name: renew_undelivered
-- Rows for what `later_than_tap` has found, as far as it and the row that the tap ends are still there, and for what
-- came since: no more is looked for, because writers of messages wait.
WITH seen AS MATERIALIZED (
    SELECT k ->> 0 AS channel_id, (k ->> 1)::bigint AS seq, (k ->> 2)::bigint AS position
    FROM jsonb_array_elements(:seen::jsonb) AS k),
pairs AS MATERIALIZED (
    SELECT u.sender_id, u.channel_id, min(coalesce(s.seq + 1, x.seq, 0)) AS seq, coalesce(s.position, 0) AS position
    FROM undelivered AS u
    LEFT JOIN seen AS s ON s.channel_id = u.channel_id
    LEFT JOIN LATERAL (
        SELECT m.seq FROM messages AS m
        WHERE s.channel_id IS NULL AND m.channel_id = u.channel_id AND m.id = u.message_id LIMIT 1) AS x ON true
    WHERE u.receiver_id = :user AND u.accepted_at > :since AND u.accepted_at <= :at
    GROUP BY u.sender_id, u.channel_id, s.position),
found AS MATERIALIZED (
    SELECT x.* FROM jsonb_array_elements(:later::jsonb) AS k
    CROSS JOIN LATERAL (
        SELECT * FROM messages AS m WHERE m.channel_id = k ->> 0 AND m.id = k ->> 1 LIMIT 1) AS x
    JOIN pairs AS p ON p.channel_id = x.channel_id AND p.sender_id = x.sender_id
    UNION ALL
    SELECT x.* FROM pairs AS p
    CROSS JOIN LATERAL (
        (SELECT * FROM messages AS m
         WHERE m.channel_id = p.channel_id AND m.sender_id = p.sender_id AND m.seq >= p.seq AND m.accepted_at > :at
         OFFSET 0)
        UNION ALL
        (SELECT * FROM messages AS m
         WHERE m.channel_id = p.channel_id AND m.seq IS NULL AND m.position > p.position
             AND m.sender_id = p.sender_id AND m.accepted_at > :at
         OFFSET 0)) AS x)
INSERT INTO undelivered
SELECT :user, f.accepted_at, f.sender_id, f.channel_id, f.id
FROM found AS f
WHERE (SELECT :user = ANY (w.receivers) FROM away_sets AS w WHERE w.id = f.away_set)
ON CONFLICT DO NOTHING;

-- name: receivers_after
-- The next of those who have anything undelivered, each found by one look at the index.
WITH RECURSIVE found AS (
    (SELECT receiver_id, 1 AS n FROM undelivered WHERE receiver_id > :after ORDER BY receiver_id LIMIT 1)
    UNION ALL
    SELECT (SELECT u.receiver_id FROM undelivered AS u
            WHERE u.receiver_id > f.receiver_id ORDER BY u.receiver_id LIMIT 1), f.n + 1
    FROM found AS f WHERE f.receiver_id IS NOT NULL AND f.n < :limit)
SELECT coalesce(json_agg(receiver_id ORDER BY n), '[]') FROM found WHERE receiver_id IS NOT NULL;

-- name: expire_undelivered
-- What was shown by a tap and is older than it need be, of these receivers.
DELETE FROM undelivered WHERE ctid = ANY (ARRAY(
    SELECT old.ctid FROM jsonb_array_elements_text(:keys::jsonb) AS k (id)
    JOIN user_activity AS a ON a.user_id = k.id AND a.last_tap <= :tapped
    CROSS JOIN LATERAL (
        SELECT u.ctid FROM undelivered AS u
        WHERE u.receiver_id = a.user_id AND u.accepted_at <= least(a.last_tap, :before)
        ORDER BY u.accepted_at LIMIT :limit) AS old
    LIMIT :limit));

-- name: receivers_before
-- Of these receivers, those who have anything that is as old.
SELECT coalesce(json_agg(k), '[]') FROM jsonb_array_elements_text(:keys::jsonb) AS k
WHERE (SELECT true FROM undelivered AS u WHERE u.receiver_id = k AND u.accepted_at <= :before LIMIT 1);

-- name: expire_untapped
-- What is as old, of these receivers.
DELETE FROM undelivered
WHERE receiver_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:keys::jsonb))) AND accepted_at <= :before;

-- name: expire_away_sets
-- Sets of receivers that no message has had since then.
DELETE FROM away_sets WHERE used_at < :before;

-- name: purge_messages
-- All messages of a deleted channel.
DELETE FROM messages WHERE channel_id = :channel;

-- name: purge_undelivered
-- Nobody is told of messages in a deleted channel.
DELETE FROM undelivered
WHERE sender_id IN (SELECT DISTINCT sender_id FROM messages WHERE channel_id = :channel) AND channel_id = :channel;

-- name: purge_away_sets
-- Of a deleted channel.
DELETE FROM away_sets WHERE channel_id = :channel;

-- name: purge_members
-- Nobody is in a deleted channel or its threads; that somebody was is kept, so that devices are told.
UPDATE members SET active = false, joined_seq = 0, joined_at = 0, skipped = '[]', {preferences default}
WHERE channel_id = :channel OR (channel_id > :first AND channel_id < :last);

-- name: purge_receipts
-- Nothing of a deleted channel and its threads is read any more; a new epoch, so that late reads do nothing.
-- Whoever wrote from outside has a pointer without a membership.
INSERT INTO read_receipts AS r
SELECT user_id, channel_id, 1, 0, '{}', NULL, NULL, 0, 0
FROM (SELECT user_id, channel_id FROM members
      WHERE channel_id = :channel OR (channel_id > :first AND channel_id < :last)
      UNION
      SELECT user_id, channel_id FROM read_receipts
      WHERE channel_id = :channel OR (channel_id > :first AND channel_id < :last)) AS e
ORDER BY user_id, channel_id
ON CONFLICT (user_id, channel_id) DO UPDATE SET
    epoch = r.epoch + 1, last_read_seq = 0, apart = '{}', last_read_id = NULL, last_read_at = NULL, read_at = 0;

-- name: purge_threads
-- The threads of a deleted channel; their seqs go on.
UPDATE channels SET deleted = true, latest_id = NULL, latest_seq = NULL, latest_at = NULL, latest_sender = NULL,
    latest_preview = NULL, member_count = 0
WHERE channel_id > :first AND channel_id < :last;

-- name: begin_log_positions
-- Up to where these parts of a log are applied; nobody else moves on in them until the end of the transaction.
SELECT coalesce(json_agg(json_build_array(part, base, position, epoch)), '[]')
FROM (SELECT part, base, position, CASE epoch_position WHEN position THEN epoch ELSE -1 END AS epoch FROM log_places
      WHERE log = :source AND part IN (SELECT k::int FROM jsonb_array_elements_text(:parts::jsonb) AS k)
      ORDER BY part FOR UPDATE) AS p;

-- name: open_log_positions
-- Parts of a log that nothing was applied of yet: their log positions come after all that ever were.
INSERT INTO log_places (log, part, base, position)
SELECT :source, k::int, n.position, n.position
FROM jsonb_array_elements_text(:parts::jsonb) AS k,
    (SELECT greatest((SELECT coalesce(max(position), 0) FROM channels),
                     (SELECT coalesce(max(position), 0) FROM log_places)) AS position) AS n
ORDER BY k::int
ON CONFLICT DO NOTHING;

-- name: move_log_positions
-- Everything up to these log positions is applied: (part, base, position, leader epoch, who had a connection meanwhile,
-- and from which offset on what was known of that before is kept).
UPDATE log_places AS p SET base = (k ->> 1)::bigint, position = (k ->> 2)::bigint, epoch = (k ->> 3)::int,
    epoch_position = (k ->> 2)::bigint,
    reached = (SELECT coalesce(jsonb_agg(r), '[]') FROM jsonb_array_elements(p.reached) AS r
               WHERE (r ->> 0)::bigint >= (k ->> 5)::bigint) || (k -> 4)
FROM jsonb_array_elements(:positions::jsonb) AS k WHERE p.log = :source AND p.part = (k ->> 0)::int;

-- name: log_positions
-- Up to where the parts of a log are applied.
SELECT coalesce(json_agg(json_build_array(part, base, position, -1)), '[]') FROM log_places WHERE log = :source;

-- name: cut_log_position
-- A partition ends at an offset below the applied one: records from there on are new, and get the next positions. Not
-- if another process has noticed it since. The epoch stays: it shows which records before that offset are new as well.
UPDATE log_places SET base = position - :offset::bigint, reached = '[]'
WHERE log = :source AND part = :part::int AND base = :base::bigint AND position - base > :offset::bigint;

-- name: away_of
-- Of messages (channel, id), those that came while receivers were away: (channel, id, sender, accepted at, receivers).
SELECT coalesce(json_agg(json_build_array(m.channel_id, m.id, m.sender_id, m.accepted_at, s.receivers)), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k
CROSS JOIN LATERAL (
    SELECT * FROM messages AS x WHERE x.channel_id = k ->> 0 AND x.id = k ->> 1 LIMIT 1) AS m
JOIN away_sets AS s ON s.id = m.away_set;

-- name: undelivered_of
-- Of rows (receiver, accepted at, sender, channel, message), those that are there.
SELECT coalesce(json_agg(k), '[]') FROM jsonb_array_elements(:keys::jsonb) AS k
WHERE (SELECT true FROM undelivered AS u
       WHERE u.receiver_id = k ->> 0 AND u.accepted_at = (k ->> 1)::bigint AND u.sender_id = k ->> 2
           AND u.channel_id = k ->> 3 AND u.message_id = k ->> 4
       LIMIT 1);

-- name: reached_in
-- Who had a connection when the last batches of these parts of a log were stored: (part, offset, user).
SELECT coalesce(json_agg(json_build_array(p.part, (r ->> 0)::bigint, r ->> 1)), '[]')
FROM log_places AS p, jsonb_array_elements(p.reached) AS r
WHERE p.log = :source AND p.part IN (SELECT k::int FROM jsonb_array_elements_text(:parts::jsonb) AS k);

-- name: members_until
-- Some of those who are in a channel since then or longer.
SELECT coalesce(json_agg(user_id), '[]')
FROM (SELECT user_id FROM members WHERE channel_id = :channel AND active AND joined_at <= :at LIMIT :limit) AS m;

-- name: erased
-- Of these hashes of ids, those of users who were erased, and when.
SELECT coalesce(json_agg(json_build_array(user_hash, at)), '[]')
FROM erased WHERE user_hash IN (SELECT jsonb_array_elements_text(:keys::jsonb));

-- name: newest_erasure
-- When a user was last erased; -1: nobody was.
SELECT coalesce(max(at), -1) FROM erased;

-- name: note_erased
-- A user was erased.
INSERT INTO erased AS e (user_hash, at) VALUES (:hash, :at)
ON CONFLICT (user_hash) DO UPDATE SET at = greatest(e.at, excluded.at);

-- name: erased_until
-- Up to when a user may have been erased: when that was, or a time before which it is no longer noted.
SELECT greatest((SELECT at FROM erased WHERE user_hash = :hash), (SELECT value FROM meta WHERE key = 'erased'), 0);

-- name: round_erased
-- What is not noted for each user any more is noted for all of them.
INSERT INTO meta AS m (key, value) SELECT 'erased', max(at) FROM erased WHERE at < :before HAVING count(*) > 0
ON CONFLICT (key) DO UPDATE SET value = greatest(m.value, excluded.value);

-- name: expire_erased
-- Nothing from before then is on its way any more.
DELETE FROM erased WHERE at < :before;

-- name: drop_receipt
-- Whoever was erased has no read pointer.
DELETE FROM read_receipts WHERE user_id = :user AND channel_id = :channel;

-- name: put_once_named
-- Whom edits of messages in big channels name no more.
INSERT INTO once_named SELECT r ->> 0, r ->> 1, r ->> 2 FROM jsonb_array_elements(:rows::jsonb) AS r
ON CONFLICT DO NOTHING;

-- name: once_named
-- Whom earlier versions of messages (channel, id) named.
SELECT coalesce(json_agg(json_build_array(o.channel_id, o.message_id, o.user_id)), '[]')
FROM jsonb_array_elements(:keys::jsonb) AS k
JOIN once_named AS o ON o.channel_id = k ->> 0 AND o.message_id = k ->> 1;

-- name: purge_once_named
-- Of a deleted channel.
DELETE FROM once_named WHERE channel_id = :channel;

-- name: note_gone
-- A channel was deleted, under this change number.
INSERT INTO gone (channel_id, change) VALUES (:channel, :change)
ON CONFLICT (channel_id) DO UPDATE SET change = excluded.change;

-- name: gone
-- The change numbers under which channels were deleted last.
SELECT coalesce(json_agg(json_build_array(g.channel_id, g.change)), '[]')
FROM jsonb_array_elements_text(:keys::jsonb) AS k
JOIN gone AS g ON g.channel_id = k;
