-- Keys come as one JSON array, and rows go out as one JSON array: a statement is one step, and the
-- interpreter's lock is free while it runs.

-- name: channels
-- Channels by id.
SELECT json_group_array(json_object(
    'channel_id', c.channel_id, 'type', c.type, 'name', c.name, 'avatar', c.avatar, 'archived', c.archived,
    'deleted', c.deleted, 'mode', c.mode, 'member_count', c.member_count, 'last_seq', c.last_seq,
    'last_id', c.last_id, 'last_at', c.last_at, 'change', c.change, 'position', c.position,
    'latest', json(iif(c.latest_id IS NULL, NULL, json_object(
        'id', c.latest_id, 'seq', c.latest_seq, 'at', c.latest_at, 'sender_id', c.latest_sender,
        'preview', c.latest_preview))), 'peers', json(c.peers)))
FROM json_each(:keys) AS k
JOIN channels AS c ON c.channel_id = k.value;

-- name: messages
-- Messages by (channel, id).
SELECT json_group_array(json_object(
    'channel_id', m.channel_id, 'id', m.id, 'seq', m.seq, 'sender_id', m.sender_id, 'at', m.at,
    'sent_at', m.sent_at, 'text', m.text, 'preview', m.preview, 'thread_id', m.thread_id,
    'thread_seq', m.thread_seq, 'mentions', json(m.mentions), 'silent', m.silent, 'deleted', m.deleted,
    'backfill', m.backfill, 'change', m.change))
FROM json_each(:keys) AS k
JOIN messages AS m ON m.channel_id = k.value ->> 0 AND m.id = k.value ->> 1;

-- name: newest_but
-- The newest message of each channel that is not deleted, other than the one named.
SELECT json_group_array(json_object(
    'channel_id', m.channel_id, 'id', m.id, 'seq', m.seq, 'sender_id', m.sender_id, 'at', m.at,
    'preview', m.preview))
FROM json_each(:keys) AS k
JOIN messages AS m ON m.channel_id = k.value ->> 0 AND m.seq = (
    SELECT x.seq FROM messages AS x
    WHERE x.channel_id = k.value ->> 0 AND x.seq > 0 AND NOT x.deleted AND x.id <> k.value ->> 1
    ORDER BY x.seq DESC LIMIT 1);

-- name: members
-- Members, also those who left, by (channel, user).
SELECT json_group_array(json_object(
    'channel_id', m.channel_id, 'user_id', m.user_id, 'active', m.active, 'joined_seq', m.joined_seq,
    'joined_at', m.joined_at, 'skipped', json(m.skipped), 'joined_position', m.joined_position))
FROM json_each(:keys) AS k
JOIN members AS m ON m.user_id = k.value ->> 1 AND m.channel_id = k.value ->> 0;

-- name: pointers
-- Read pointers by (channel, user).
SELECT json_group_array(json_array(
    r.channel_id, r.user_id, json_array(
        r.epoch, r.last_read_seq, json(r.apart), r.last_read_id, r.last_read_at, r.read_at, r.user_change)))
FROM json_each(:keys) AS k
JOIN read_receipts AS r ON r.user_id = k.value ->> 1 AND r.channel_id = k.value ->> 0;

-- name: newest_reply_but
-- The newest reply of each thread (channel, thread) that is not deleted, other than the one named.
SELECT json_group_array(json_object(
    'channel_id', m.channel_id, 'id', m.id, 'seq', m.seq, 'sender_id', m.sender_id, 'at', m.at,
    'preview', m.preview, 'thread_id', m.thread_id, 'thread_seq', m.thread_seq))
FROM json_each(:keys) AS k
JOIN messages AS m ON m.channel_id = k.value ->> 0 AND m.thread_id = k.value ->> 1 AND m.thread_seq = (
    SELECT x.thread_seq FROM messages AS x
    WHERE x.channel_id = k.value ->> 0 AND x.thread_id = k.value ->> 1 AND x.thread_seq > 0 AND NOT x.deleted
        AND x.id <> k.value ->> 2
    ORDER BY x.thread_seq DESC LIMIT 1);

-- name: audience
-- The members of those of these channels that are counted by ledger, and until when they have muted it.
SELECT json_group_array(json_array(m.channel_id, m.user_id, m.muted_until))
FROM json_each(:keys) AS k
JOIN channels AS c ON c.channel_id = k.value AND c.mode = 'ledger'
JOIN members AS m ON m.channel_id = c.channel_id AND m.active = 1;

-- name: followers
-- The followers of these threads (room, channel), and whether they are still in the channel.
SELECT json_group_array(json_array(f.channel_id, f.user_id, coalesce(m.active, 0)))
FROM json_each(:keys) AS k
JOIN members AS f ON f.channel_id = k.value ->> 0 AND f.active = 1
LEFT JOIN members AS m ON m.user_id = f.user_id AND m.channel_id = k.value ->> 1;

-- name: everyone
-- Everyone who ever had a membership or a pointer in a channel or in one of its threads.
SELECT json_group_array(json_array(channel_id, user_id))
FROM (SELECT channel_id, user_id FROM members WHERE channel_id = :channel
      UNION
      SELECT channel_id, user_id FROM read_receipts WHERE channel_id = :channel
      UNION
      SELECT channel_id, user_id FROM members WHERE channel_id > :first AND channel_id < :last
      UNION
      SELECT channel_id, user_id FROM read_receipts WHERE channel_id > :first AND channel_id < :last);

-- name: before_last
-- The seq of the n-th newest message that is not deleted.
SELECT seq FROM messages
WHERE channel_id = :channel AND seq > 0 AND NOT deleted
ORDER BY seq DESC LIMIT 1 OFFSET :n - 1;

-- name: put_channels
-- Channels as they stand now.
INSERT OR REPLACE INTO channels
SELECT value ->> 'channel_id', value ->> 'type', value ->> 'name', value ->> 'avatar', value ->> 'archived',
    value ->> 'deleted', value ->> 'mode', value ->> 'member_count', value ->> 'last_seq', value ->> 'last_id',
    value ->> 'last_at', value ->> 'change', value ->> 'position', value ->> '$.latest.id',
    value ->> '$.latest.seq', value ->> '$.latest.at', value ->> '$.latest.sender_id', value ->> '$.latest.preview',
    value -> 'peers'
FROM json_each(:rows);

-- name: put_messages
-- New messages, and what edits and deletes make of known ones; id, place and sender never change.
INSERT INTO messages
SELECT value ->> 'channel_id', value ->> 'id', value ->> 'seq', value ->> 'sender_id', value ->> 'at',
    value ->> 'sent_at', value ->> 'text', value ->> 'preview', value ->> 'thread_id', value ->> 'thread_seq',
    value -> 'mentions', value ->> 'silent', value ->> 'deleted', value ->> 'backfill', value ->> 'change',
    value ->> 'position', value ->> 'accepted_at', value ->> 'away_set'
FROM json_each(:rows) WHERE true
ON CONFLICT (channel_id, id) DO UPDATE SET
    text = excluded.text, preview = excluded.preview, mentions = excluded.mentions, deleted = excluded.deleted;

-- name: put_members
-- Memberships; preferences stay as they are.
INSERT INTO members (user_id, channel_id, active, joined_seq, joined_at, skipped, joined_position)
SELECT value ->> 'user_id', value ->> 'channel_id', value ->> 'active', value ->> 'joined_seq',
    value ->> 'joined_at', value -> 'skipped', value ->> 'joined_position'
FROM json_each(:rows) WHERE true
ON CONFLICT (user_id, channel_id) DO UPDATE SET
    active = excluded.active, joined_seq = excluded.joined_seq, joined_at = excluded.joined_at,
    skipped = excluded.skipped, joined_position = excluded.joined_position;

-- name: away_sets
-- Of sets of receivers by (channel, key), those that are there: (channel, key, id, last used).
SELECT json_group_array(json_array(s.channel_id, s.key, s.id, s.used_at))
FROM json_each(:keys) AS k
CROSS JOIN away_sets AS s ON s.channel_id = k.value ->> 0 AND s.key = k.value ->> 1;

-- name: put_away_sets
-- Sets of receivers (channel, key, receivers, last used).
INSERT INTO away_sets (channel_id, key, receivers, used_at)
SELECT value ->> 0, value ->> 1, value -> 2, value ->> 3 FROM json_each(:rows) WHERE true
ON CONFLICT (channel_id, key) DO UPDATE SET used_at = max(used_at, excluded.used_at);

-- name: put_first_undelivered
-- Messages (channel, sender, accepted at, id, set): a row for each receiver who has none from the sender in the channel
-- since the last tap that is as old or older.
INSERT INTO undelivered
SELECT r.value, n.value ->> 2, n.value ->> 1, n.value ->> 0, n.value ->> 3
FROM json_each(:rows) AS n
CROSS JOIN away_sets AS s ON s.id = n.value ->> 4
CROSS JOIN json_each(s.receivers) AS r
WHERE r.value <> n.value ->> 1 AND NOT EXISTS (
    SELECT 1 FROM undelivered AS u
    WHERE u.sender_id = n.value ->> 1 AND u.channel_id = n.value ->> 0 AND u.receiver_id = r.value
        AND u.accepted_at <= n.value ->> 2
        AND u.accepted_at > coalesce((SELECT a.last_tap FROM user_activity AS a WHERE a.user_id = r.value), 0))
ON CONFLICT DO NOTHING;

-- name: put_undelivered_since
-- Messages (channel, sender, accepted at, id, set, the first one's time): a row for each receiver who has tapped since.
INSERT INTO undelivered
SELECT a.user_id, n.value ->> 2, n.value ->> 1, n.value ->> 0, n.value ->> 3
FROM user_activity AS a
CROSS JOIN json_each(:rows) AS n
CROSS JOIN away_sets AS s ON s.id = n.value ->> 4
WHERE a.last_tap >= :since AND a.last_tap >= n.value ->> 5 AND a.user_id <> n.value ->> 1
    AND EXISTS (SELECT 1 FROM json_each(s.receivers) AS r WHERE r.value = a.user_id)
ON CONFLICT DO NOTHING;

-- name: put_undelivered
-- Who wrote to whom while away.
INSERT INTO undelivered
SELECT value ->> 'receiver_id', value ->> 'accepted_at', value ->> 'sender_id', value ->> 'channel_id',
    value ->> 'message_id'
FROM json_each(:rows) WHERE true
ON CONFLICT DO NOTHING;

-- name: living_messages
-- Of messages by (channel, id), those that are there and not deleted, and who sent them.
SELECT json_group_array(json_array(m.channel_id, m.id, m.sender_id))
FROM json_each(:keys) AS k
CROSS JOIN messages AS m ON m.channel_id = k.value ->> 0 AND m.id = k.value ->> 1
WHERE NOT m.deleted;

-- name: merge_receipts
-- The same as `merge` in domain/rules.py: the higher epoch wins whole; in the same epoch the larger seq, and both `apart`.
INSERT INTO read_receipts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (user_id, channel_id) DO UPDATE SET
    apart = CASE
        WHEN excluded.epoch > epoch THEN excluded.apart
        WHEN apart = '[]' AND excluded.apart = '[]' THEN '[]'
        ELSE (SELECT json_group_array(value)
              FROM (SELECT value FROM json_each(read_receipts.apart)
                    UNION SELECT value FROM json_each(excluded.apart)
                    ORDER BY value)
              WHERE value > max(read_receipts.last_read_seq, excluded.last_read_seq)) END,
    last_read_id = CASE WHEN excluded.epoch > epoch OR excluded.last_read_seq > last_read_seq
        THEN excluded.last_read_id ELSE last_read_id END,
    last_read_at = CASE WHEN excluded.epoch > epoch OR excluded.last_read_seq > last_read_seq
        THEN excluded.last_read_at ELSE last_read_at END,
    read_at = CASE WHEN excluded.epoch > epoch OR excluded.last_read_seq > last_read_seq THEN excluded.read_at
        WHEN excluded.apart <> '[]' AND EXISTS (
            SELECT 1 FROM json_each(excluded.apart) AS x
            WHERE x.value > last_read_seq AND x.value NOT IN (SELECT value FROM json_each(read_receipts.apart)))
        THEN max(read_at, excluded.read_at) ELSE read_at END,
    last_read_seq = CASE WHEN excluded.epoch > epoch THEN excluded.last_read_seq
        ELSE max(last_read_seq, excluded.last_read_seq) END,
    epoch = excluded.epoch,
    user_change = max(user_change, excluded.user_change)
WHERE excluded.epoch > epoch
    OR (excluded.epoch = epoch AND (excluded.last_read_seq > last_read_seq OR excluded.apart <> '[]'));

-- name: merge_pointers
-- The same for rows without `apart`.
INSERT INTO read_receipts VALUES (?, ?, ?, ?, '[]', ?, ?, ?, ?)
ON CONFLICT (user_id, channel_id) DO UPDATE SET
    apart = CASE WHEN apart = '[]' OR excluded.epoch > epoch THEN '[]'
        ELSE (SELECT json_group_array(value)
              FROM (SELECT value FROM json_each(read_receipts.apart) ORDER BY value)
              WHERE value > excluded.last_read_seq) END,
    last_read_id = excluded.last_read_id,
    last_read_at = excluded.last_read_at,
    read_at = excluded.read_at,
    last_read_seq = excluded.last_read_seq,
    epoch = excluded.epoch,
    user_change = max(user_change, excluded.user_change)
WHERE excluded.epoch > epoch OR (excluded.epoch = epoch AND excluded.last_read_seq > last_read_seq);

-- name: put_preferences
-- What a member wants of a channel. A late write that a newer one has overtaken does nothing.
UPDATE members SET {preferences given}, user_change = :change
WHERE user_id = :user AND channel_id = :channel AND user_change <= :change;

-- name: load_user
-- Every channel that a user is in, has left, or has a pointer in.
SELECT json_group_array(json_array(
    c.channel_id, coalesce(m.active, 0), c.mode, c.change, coalesce(r.last_read_seq, 0) >= c.last_seq,
    json_array(
        coalesce(r.epoch, 0), coalesce(r.last_read_seq, 0), json(coalesce(r.apart, '[]')), r.last_read_id,
        r.last_read_at, coalesce(r.read_at, 0), max(coalesce(m.user_change, 0), coalesce(r.user_change, 0))),
    json_array({preferences of m}),
    coalesce(c.latest_at, 0), c.archived))
FROM (SELECT channel_id FROM members WHERE user_id = :user
      UNION
      SELECT channel_id FROM read_receipts WHERE user_id = :user) AS k
JOIN channels AS c ON c.channel_id = k.channel_id
LEFT JOIN members AS m ON m.user_id = :user AND m.channel_id = k.channel_id
LEFT JOIN read_receipts AS r ON r.user_id = :user AND r.channel_id = k.channel_id;

-- name: unread_page
-- What is unread for a user: [sums of channels without a mute or `count`, the other unread channels, rooms of threads
-- with replies after the pointer in channels of the user, the unread channels with the latest activity]. Of a channel's
-- unread messages the newest :cap + 1 count; their mentions are those of the newest :cap, which a ledger would keep.
-- `sums`: messages, and mentions times 2^32. One sum in a subquery is cheaper than several of a GROUP BY, which would
-- read the channel's columns again for each message.
WITH newest AS MATERIALIZED (
    SELECT k.channel_id, coalesce(c.latest_at, 0) AS latest_at,
        c.archived * 4 + (c.type = 'thread') * 2 + (k.muted_until > 0 OR k.count <> 'all') AS kind, (
            SELECT sum(1 + iif(m.mentions <> '[]', EXISTS (
                SELECT 1 FROM json_each(m.mentions) AS x WHERE x.value IN (:user, '@channel')), 0) * 4294967296)
            FROM messages AS m
            WHERE m.channel_id = k.channel_id
                AND m.seq > iif(c.last_seq - coalesce(r.last_read_seq, 0) <= :cap, coalesce(r.last_read_seq, 0), (
                    SELECT coalesce(min(seq), 1) - 1 FROM (
                        SELECT x.seq FROM messages AS x
                        WHERE x.channel_id = k.channel_id AND x.seq > coalesce(r.last_read_seq, 0) AND NOT x.deleted
                            AND NOT x.silent AND x.sender_id <> :user AND (r.apart IS NULL OR r.apart = '[]'
                                OR x.seq NOT IN (SELECT value FROM json_each(r.apart)))
                        ORDER BY x.seq DESC LIMIT :cap + 1)))
                AND NOT m.deleted AND NOT m.silent AND m.sender_id <> :user
                AND (r.apart IS NULL OR r.apart = '[]' OR m.seq NOT IN (SELECT value FROM json_each(r.apart)))) AS sums
    FROM members AS k
    CROSS JOIN channels AS c ON c.channel_id = k.channel_id
    LEFT JOIN read_receipts AS r ON r.user_id = k.user_id AND r.channel_id = k.channel_id
    WHERE k.user_id = :user AND k.active AND NOT c.deleted AND c.last_seq > coalesce(r.last_read_seq, 0)),
counted AS (
    SELECT channel_id, latest_at, sums & 4294967295 AS n, kind, (sums >> 32) - iif(sums & 4294967295 > :cap, (
        SELECT EXISTS (SELECT 1 FROM json_each(m.mentions) AS x WHERE x.value IN (:user, '@channel'))
        FROM messages AS m LEFT JOIN read_receipts AS r ON r.user_id = :user AND r.channel_id = m.channel_id
        WHERE m.channel_id = k.channel_id AND m.seq > coalesce(r.last_read_seq, 0) AND NOT m.deleted AND NOT m.silent
            AND m.sender_id <> :user
            AND (r.apart IS NULL OR r.apart = '[]' OR m.seq NOT IN (SELECT value FROM json_each(r.apart)))
        ORDER BY m.seq DESC LIMIT 1 OFFSET :cap), 0) AS mentions
    FROM newest AS k)
SELECT json_array(
    json((SELECT json_array(
        coalesce(sum(min(n, :cap)), 0), coalesce(sum(mentions), 0), count(*), coalesce(max(n > :cap), 0))
     FROM counted WHERE kind = 0 AND n)),
    json((SELECT json_group_array(json_array(json_array({preferences of m}), min(k.n, :cap), k.mentions, k.n > :cap))
     FROM counted AS k JOIN members AS m ON m.user_id = :user AND m.channel_id = k.channel_id
     WHERE k.kind = 1 AND k.n)),
    json((SELECT json_group_array(json_array(k.channel_id, coalesce(r.last_read_seq, 0), json(coalesce(r.apart, '[]'))))
     FROM counted AS k LEFT JOIN read_receipts AS r ON r.user_id = :user AND r.channel_id = k.channel_id
     WHERE k.kind & 2 AND EXISTS (
         SELECT 1 FROM members AS m WHERE m.user_id = :user AND m.active
             AND m.channel_id = substr(k.channel_id, 1, instr(k.channel_id, char(31)) - 1)))),
    json((SELECT json_group_array(json_array(
        json_object(
            'channel_id', c.channel_id, 'type', c.type, 'name', c.name, 'avatar', c.avatar, 'archived', c.archived,
            'deleted', c.deleted, 'mode', c.mode, 'member_count', c.member_count, 'last_seq', c.last_seq,
            'last_id', c.last_id, 'last_at', c.last_at, 'change', c.change, 'position', c.position,
            'latest', json(iif(c.latest_id IS NULL, NULL, json_object(
                'id', c.latest_id, 'seq', c.latest_seq, 'at', c.latest_at, 'sender_id', c.latest_sender,
                'preview', c.latest_preview))), 'peers', json(c.peers)),
        json_array(
            coalesce(r.epoch, 0), coalesce(r.last_read_seq, 0), json(coalesce(r.apart, '[]')), r.last_read_id,
            r.last_read_at, coalesce(r.read_at, 0), max(coalesce(m.user_change, 0), coalesce(r.user_change, 0))),
        json_array({preferences of m}), k.n, k.mentions,
        json((SELECT json_array(seq, id, at) FROM (
            SELECT x.seq, x.id, x.at FROM messages AS x
            WHERE x.channel_id = k.channel_id AND x.seq > coalesce(r.last_read_seq, 0) AND NOT x.deleted
                AND NOT x.silent AND x.sender_id <> :user
                AND (r.apart IS NULL OR r.apart = '[]' OR x.seq NOT IN (SELECT value FROM json_each(r.apart)))
            ORDER BY x.seq DESC LIMIT :cap) ORDER BY seq LIMIT 1))))
     FROM (SELECT channel_id, n, mentions FROM counted WHERE n AND NOT kind & 2
           ORDER BY latest_at DESC, channel_id LIMIT :limit) AS k
     JOIN channels AS c ON c.channel_id = k.channel_id
     JOIN members AS m ON m.user_id = :user AND m.channel_id = k.channel_id
     LEFT JOIN read_receipts AS r ON r.user_id = :user AND r.channel_id = k.channel_id)));

-- name: ledger_entries
-- The newest unread messages of each (index, user, channel, seq, only by name, apart), oldest first.
WITH k AS MATERIALIZED (
    SELECT value ->> 0 AS i, value ->> 1 AS user, c.channel_id AS channel, value ->> 3 AS seq,
        value ->> 4 AS only_named, value ->> 5 AS apart, c.last_seq - (value ->> 3) <= :cap AS few
    FROM json_each(:keys) JOIN channels AS c ON c.channel_id = value ->> 2)
SELECT json_group_array(json_array(i, json_array(seq, id, at, mention))) FROM (
    SELECT k.i, m.seq, m.id, m.at, k.only_named,
        m.mentions <> '[]' AND EXISTS (
            SELECT 1 FROM json_each(m.mentions) AS x
            WHERE x.value = k.user OR (x.value = '@channel' AND NOT k.only_named)) AS mention
    FROM k
    JOIN messages AS m ON m.channel_id = k.channel AND m.seq > max(k.seq, iif(k.few, k.seq, (
        SELECT coalesce(min(seq), 1) - 1 FROM (
            SELECT x.seq FROM messages AS x
            WHERE x.channel_id = k.channel AND x.seq > k.seq AND NOT x.deleted AND NOT x.silent
                AND x.sender_id <> k.user AND (k.apart = '[]' OR x.seq NOT IN (SELECT value FROM json_each(k.apart)))
            ORDER BY x.seq DESC LIMIT :cap + 1))))
        AND NOT m.deleted AND NOT m.silent AND m.sender_id <> k.user
        AND (k.apart = '[]' OR m.seq NOT IN (SELECT value FROM json_each(k.apart)))
    ORDER BY k.i, m.seq)
WHERE mention OR NOT only_named;

-- name: thread_entries
-- The newest unread replies of each (index, user, channel, seq, thread, apart), oldest first.
WITH k AS MATERIALIZED (
    SELECT value ->> 0 AS i, value ->> 1 AS user, value ->> 2 AS channel, value ->> 3 AS seq,
        value ->> 4 AS thread, value ->> 5 AS apart
    FROM json_each(:keys))
SELECT json_group_array(json_array(i, json_array(seq, id, at, mention))) FROM (
    SELECT k.i, m.thread_seq AS seq, m.id, m.at,
        m.mentions <> '[]' AND EXISTS (SELECT 1 FROM json_each(m.mentions) AS x WHERE x.value = k.user) AS mention
    FROM k
    JOIN messages AS m ON m.channel_id = k.channel AND m.thread_id = k.thread AND m.thread_seq > (
        SELECT coalesce(min(thread_seq), 1) - 1 FROM (
            SELECT x.thread_seq FROM messages AS x
            WHERE x.channel_id = k.channel AND x.thread_id = k.thread AND x.thread_seq > k.seq
                AND NOT x.deleted AND NOT x.silent AND x.sender_id <> k.user
                AND (k.apart = '[]' OR x.thread_seq NOT IN (SELECT value FROM json_each(k.apart)))
            ORDER BY x.thread_seq DESC LIMIT :cap + 1))
        AND m.thread_seq > k.seq AND NOT m.deleted AND NOT m.silent AND m.sender_id <> k.user
        AND (k.apart = '[]' OR m.thread_seq NOT IN (SELECT value FROM json_each(k.apart)))
    ORDER BY k.i, m.thread_seq);

-- name: changes
-- The change numbers of channels.
SELECT json_group_array(json_array(c.channel_id, c.change))
FROM json_each(:keys) AS k
JOIN channels AS c ON c.channel_id = k.value;

-- name: timeline
-- The newest countable messages of a channel, newest first.
SELECT json_group_array(json_array(seq, id, at, everyone)) FROM (
    SELECT seq, id, at, mentions <> '[]' AND EXISTS (
        SELECT 1 FROM json_each(mentions) AS x WHERE x.value = '@channel') AS everyone
    FROM messages
    WHERE channel_id = :channel AND seq > 0 AND NOT deleted AND NOT silent
    ORDER BY seq DESC LIMIT :limit);

-- name: by_seq
-- Places by (channel, seq).
SELECT json_group_array(json_array(m.channel_id, m.seq, m.id, m.at))
FROM json_each(:keys) AS k
JOIN messages AS m ON m.channel_id = k.value ->> 0 AND m.seq = k.value ->> 1;

-- name: own_seqs
-- The newest of a user's own messages in a channel.
SELECT json_group_array(seq) FROM (
    SELECT seq FROM messages
    WHERE channel_id = :channel AND sender_id = :user AND seq >= :since
    ORDER BY seq DESC LIMIT :cap);

-- name: unread_oldest
-- Unread messages of a user in a channel, oldest first.
SELECT json_group_array(json_object(
    'channel_id', m.channel_id, 'id', m.id, 'seq', m.seq, 'sender_id', m.sender_id, 'at', m.at,
    'sent_at', m.sent_at, 'text', m.text, 'preview', m.preview, 'thread_id', m.thread_id,
    'thread_seq', m.thread_seq, 'mentions', json(m.mentions), 'silent', m.silent, 'deleted', m.deleted,
    'backfill', m.backfill, 'change', m.change))
FROM (SELECT * FROM messages
      WHERE channel_id = :channel AND seq > :seq AND sender_id <> :user AND NOT deleted AND NOT silent
          AND seq NOT IN (SELECT value FROM json_each(:apart)) AND at > :after AND at < :before
      ORDER BY seq LIMIT :limit) AS m;

-- name: unread_newest
-- Unread messages of a user in a channel, newest first.
SELECT json_group_array(json_object(
    'channel_id', m.channel_id, 'id', m.id, 'seq', m.seq, 'sender_id', m.sender_id, 'at', m.at,
    'sent_at', m.sent_at, 'text', m.text, 'preview', m.preview, 'thread_id', m.thread_id,
    'thread_seq', m.thread_seq, 'mentions', json(m.mentions), 'silent', m.silent, 'deleted', m.deleted,
    'backfill', m.backfill, 'change', m.change))
FROM (SELECT * FROM messages
      WHERE channel_id = :channel AND seq > :seq AND sender_id <> :user AND NOT deleted AND NOT silent
          AND seq NOT IN (SELECT value FROM json_each(:apart)) AND at > :after AND at < :before
      ORDER BY seq DESC LIMIT :limit) AS m;

-- name: once_members
-- Those of some users who were in a channel and have left it.
SELECT json_group_array(user_id)
FROM members WHERE channel_id = :channel AND NOT active AND user_id IN (SELECT value FROM json_each(:users));

-- name: members_page
-- Members of a channel by id.
SELECT json_group_array(json_object(
    'channel_id', channel_id, 'user_id', user_id, 'active', active, 'joined_seq', joined_seq,
    'joined_at', joined_at, 'skipped', json(skipped)))
FROM (SELECT * FROM members
      WHERE channel_id = :channel AND active = 1 AND user_id > :after
      ORDER BY user_id LIMIT :limit);

-- name: breakdown
-- The messages after a pointer, each in one group: own, deleted, silent, read one by one, unread; and mentions.
SELECT json_array(count(*), coalesce(sum(own), 0), coalesce(sum(deleted), 0), coalesce(sum(silent), 0),
    coalesce(sum(apart), 0), coalesce(sum(unread), 0), coalesce(sum(unread AND mention), 0))
FROM (
    SELECT own, NOT own AND deleted AS deleted, NOT own AND NOT deleted AND silent AS silent,
        plain AND apart AS apart, plain AND NOT apart AS unread, mention
    FROM (
        SELECT own, deleted, silent, NOT own AND NOT deleted AND NOT silent AS plain, apart, mention
        FROM (
            SELECT sender_id = :user AS own, deleted, silent,
                seq IN (SELECT value FROM json_each(:apart)) AS apart,
                mentions <> '[]' AND EXISTS (
                    SELECT 1 FROM json_each(mentions) AS x
                    WHERE x.value = :user OR x.value = '@channel') AS mention
            FROM messages WHERE channel_id = :channel AND seq > :seq)));

-- name: explain_facts
-- What explain shows besides the count.
SELECT json_array(c.last_seq, coalesce(m.joined_seq, 0), c.change)
FROM channels AS c
LEFT JOIN members AS m ON m.user_id = :user AND m.channel_id = c.channel_id
WHERE c.channel_id = :channel;

-- name: save_undo
-- What an undo needs.
INSERT OR REPLACE INTO undo (token, user_id, expires_at, items) VALUES (:token, :user, :expires_at, :items);

-- name: expire_undo
-- Undo tokens that are over.
DELETE FROM undo WHERE expires_at <= :now;

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
INSERT INTO secrets (name, value) VALUES (:secret, :bytes) ON CONFLICT (name) DO NOTHING;

-- name: next_generation
-- Counts the times that the hot state began empty.
UPDATE meta SET value = max(value, :above) + 1 WHERE key = 'generation' RETURNING value;

-- name: slots
-- The generations of the hot store by slot.
SELECT json_group_array(json_array(first, last, number, run)) FROM (SELECT * FROM slots ORDER BY first);

-- name: hold_slots
-- No other process renews slots until the transaction ends.
UPDATE meta SET value = value WHERE key = 'generation' RETURNING 1;

-- name: drop_slots
-- Before all of them are written again.
DELETE FROM slots;

-- name: put_slots
-- The generations of the hot store by slot, in place of those before.
INSERT INTO slots (first, last, number, run)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(:rows);

-- name: fresh
-- The highest generation that is fresh.
SELECT coalesce(max(value), 0) FROM meta WHERE key = 'fresh';

-- name: note_fresh
-- A higher one stays.
INSERT INTO meta (key, value) VALUES ('fresh', :number)
ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value);

-- name: note_spool
-- Reads wait in a spool; that counts until a time.
INSERT INTO meta (key, value) VALUES ('spool:' || :spool, :until)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: drop_spool
-- Nothing waits there any more.
DELETE FROM meta WHERE key = 'spool:' || :spool;

-- name: spools
-- How many spools reads wait in.
SELECT count(*) FROM meta WHERE key LIKE 'spool:%' AND value > :now;

-- name: touch
-- A write that needs room on the disk: what changes nothing would not be written. Fails if the store cannot be written.
INSERT INTO meta (key, value) VALUES ('touched', 1) ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING 1;

-- name: last_position
-- Where in the log the last change stands.
SELECT coalesce(max(position), 0) FROM channels;

-- name: messages_since
-- The newest of a channel's messages that came after a log position, newest first: order by seq is order in
-- the log, so that none is read but the newest.
SELECT json_group_array(json_object(
    'channel_id', m.channel_id, 'id', m.id, 'seq', m.seq, 'sender_id', m.sender_id, 'at', m.at,
    'preview', m.preview, 'thread_id', m.thread_id, 'thread_seq', m.thread_seq, 'mentions', json(m.mentions),
    'silent', m.silent, 'deleted', m.deleted, 'position', m.position))
FROM (SELECT * FROM messages WHERE channel_id = :channel AND seq > 0 ORDER BY seq DESC LIMIT :limit) AS m
WHERE m.position > :position;

-- name: replies_since
-- A channel's replies in threads only that came after a log position, in order.
SELECT json_group_array(json_object(
    'channel_id', m.channel_id, 'id', m.id, 'seq', m.seq, 'sender_id', m.sender_id, 'at', m.at,
    'preview', m.preview, 'thread_id', m.thread_id, 'thread_seq', m.thread_seq, 'mentions', json(m.mentions),
    'silent', m.silent, 'deleted', m.deleted, 'position', m.position))
FROM (SELECT * FROM messages
      WHERE channel_id = :channel AND seq IS NULL AND position > :position AND NOT backfill
      ORDER BY position LIMIT :limit) AS m;

-- name: joins
-- Where a user's memberships of these channels begin: (channel, seq, log position).
SELECT json_group_array(json_array(channel_id, joined_seq, joined_position)) FROM members
WHERE user_id = :user AND active = 1 AND channel_id IN (SELECT value FROM json_each(:keys));

-- name: receipts_since
-- Pointers that others moved since a time in the channels of a user that have few enough members, without those
-- who keep theirs private: (channel, user, seq, id, read at, what joins alone marked).
SELECT json_group_array(json_array(channel_id, user_id, last_read_seq, last_read_id, read_at, json(skipped)))
FROM (SELECT r.*, o.skipped
      FROM members AS m
      JOIN channels AS c ON c.channel_id = m.channel_id AND c.member_count <= :most AND NOT c.deleted
          AND c.type <> 'thread'
      JOIN read_receipts AS r ON r.channel_id = m.channel_id AND r.read_at >= :since AND r.user_id <> :user
      JOIN members AS o ON o.user_id = r.user_id AND o.channel_id = r.channel_id AND o.active = 1
          AND o.receipts = 'public'
      LEFT JOIN user_activity AS u ON u.user_id = r.user_id
      WHERE m.user_id = :user AND m.active = 1 AND coalesce(u.receipts, 'public') = 'public'
      ORDER BY r.read_at LIMIT :limit);

-- name: public_readers
-- Of these (user, channel), the members who don't keep receipts private, and what joins alone marked for them.
SELECT json_group_array(json_array(m.user_id, m.channel_id, json(m.skipped)))
FROM json_each(:keys) AS k
JOIN members AS m ON m.user_id = k.value ->> 0 AND m.channel_id = k.value ->> 1 AND m.active = 1
    AND m.receipts = 'public'
LEFT JOIN user_activity AS u ON u.user_id = m.user_id
WHERE coalesce(u.receipts, 'public') = 'public';

-- name: wrote_since
-- Of these (channel, seq), those in which somebody other than the user has written after the seq.
SELECT json_group_array(k.value ->> 0)
FROM json_each(:keys) AS k
WHERE EXISTS (SELECT 1 FROM messages AS m
              WHERE m.channel_id = k.value ->> 0 AND m.seq > k.value ->> 1 AND m.sender_id <> :user);

-- name: seen_count
-- How many members other than the sender have read a place, without those for whom a join alone marked it and those
-- who keep it private.
SELECT count(*)
FROM members AS m
JOIN read_receipts AS r ON r.user_id = m.user_id AND r.channel_id = m.channel_id
LEFT JOIN user_activity AS u ON u.user_id = m.user_id
WHERE m.channel_id = :channel AND m.active = 1 AND m.user_id <> :sender
    AND m.receipts = 'public' AND coalesce(u.receipts, 'public') = 'public'
    AND (r.last_read_seq >= :seq OR :seq IN (SELECT value FROM json_each(r.apart)))
    AND NOT EXISTS (SELECT 1 FROM json_each(m.skipped) AS s WHERE s.value ->> 0 < :seq AND s.value ->> 1 >= :seq);

-- name: readers
-- The pointers of a channel's members, without those who keep theirs private, and what joins alone marked.
SELECT json_group_array(json_array(m.user_id, json_array(
    coalesce(r.epoch, 0), coalesce(r.last_read_seq, 0), json(coalesce(r.apart, '[]')), r.last_read_id, r.last_read_at,
    coalesce(r.read_at, 0)), json(m.skipped)))
FROM members AS m
LEFT JOIN read_receipts AS r ON r.user_id = m.user_id AND r.channel_id = m.channel_id
LEFT JOIN user_activity AS u ON u.user_id = m.user_id
WHERE m.channel_id = :channel AND m.active = 1
    AND m.receipts = 'public' AND coalesce(u.receipts, 'public') = 'public';

-- name: cut_skipped
-- What joins marked, from a seq on, is marked by them no more: the user has marked it unread.
UPDATE members SET skipped = (
    SELECT json_group_array(json_array(s.value ->> 0, min(s.value ->> 1, :seq - 1)))
    FROM json_each(skipped) AS s WHERE s.value ->> 0 < :seq - 1)
WHERE user_id = :user AND channel_id = :channel AND skipped <> '[]';

-- name: activity
-- What is kept of a user: last tap, last seen, receipts.
SELECT last_tap, last_seen, receipts FROM user_activity WHERE user_id = :user;

-- name: save_seen
-- When a user was last online.
INSERT INTO user_activity (user_id, last_seen) VALUES (:user, :at)
ON CONFLICT (user_id) DO UPDATE SET last_seen = max(last_seen, excluded.last_seen);

-- name: save_receipts
-- Whether a user's receipts are public. A late write that a newer one has overtaken does nothing.
INSERT INTO user_activity (user_id, receipts, user_change) VALUES (:user, :receipts, :change)
ON CONFLICT (user_id) DO UPDATE SET receipts = excluded.receipts, user_change = excluded.user_change
WHERE user_activity.user_change <= excluded.user_change;

-- name: begin_tap
-- The tap that stands.
INSERT INTO user_activity (user_id) VALUES (:user)
ON CONFLICT (user_id) DO UPDATE SET last_tap = last_tap RETURNING last_tap;

-- name: save_tap
-- The badge was tapped.
UPDATE user_activity SET last_tap = max(last_tap, :at) WHERE user_id = :user;

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
SELECT json_group_array(DISTINCT sender_id) FROM undelivered
WHERE receiver_id = :user
    AND accepted_at > coalesce((SELECT last_tap FROM user_activity WHERE user_id = :user), 0);

-- name: receivers_of_gone
-- Of notes (receiver, accepted at, sender, channel), the receivers of those for whom no row stands any more.
SELECT json_group_array(DISTINCT k.value ->> 0) FROM json_each(:keys) AS k
WHERE NOT EXISTS (
    SELECT 1 FROM undelivered AS u
    WHERE u.sender_id = k.value ->> 2 AND u.channel_id = k.value ->> 3 AND u.receiver_id = k.value ->> 0
        AND u.accepted_at <= k.value ->> 1);

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
    LEFT JOIN messages AS x ON x.channel_id = u.channel_id AND x.id = u.message_id
    WHERE u.receiver_id = :user AND u.accepted_at > :since AND u.accepted_at <= :until
        AND (SELECT r.active FROM members AS r WHERE r.user_id = :user AND r.channel_id = u.channel_id)),
pairs AS MATERIALIZED (
    SELECT sender_id, channel_id, min(accepted_at) AS accepted_at, min(seq) AS seq
    FROM here GROUP BY sender_id, channel_id),
sets AS MATERIALIZED (
    SELECT s.id FROM away_sets AS s
    WHERE s.channel_id IN (SELECT channel_id FROM pairs)
        AND EXISTS (SELECT 1 FROM json_each(s.receivers) AS r WHERE r.value = :user)),
shown AS (
    SELECT channel_id, id, accepted_at FROM here
    UNION
    SELECT x.channel_id, x.id, x.accepted_at FROM pairs AS p
    CROSS JOIN messages AS x ON x.channel_id = p.channel_id AND x.sender_id = p.sender_id AND x.seq >= p.seq
    WHERE x.accepted_at >= p.accepted_at AND x.accepted_at <= :until AND x.away_set IN (SELECT id FROM sets)
    UNION
    SELECT x.channel_id, x.id, x.accepted_at FROM pairs AS p
    CROSS JOIN messages AS x ON x.channel_id = p.channel_id AND x.sender_id = p.sender_id AND x.seq IS NULL
    WHERE x.accepted_at >= p.accepted_at AND x.accepted_at <= :until AND x.away_set IN (SELECT id FROM sets))
SELECT json_group_array(json_object(
    'channel_id', m.channel_id, 'id', m.id, 'seq', m.seq, 'sender_id', m.sender_id, 'at', m.at,
    'sent_at', m.sent_at, 'text', m.text, 'preview', m.preview, 'thread_id', m.thread_id,
    'thread_seq', m.thread_seq, 'mentions', json(m.mentions), 'silent', m.silent, 'deleted', m.deleted,
    'backfill', m.backfill, 'change', m.change, 'accepted_at', m.shown_at))
FROM (SELECT x.*, n.accepted_at AS shown_at FROM shown AS n
      CROSS JOIN messages AS x ON x.channel_id = n.channel_id AND x.id = n.id
      WHERE (n.accepted_at, x.at, x.channel_id, x.id) < (:accepted_at, :at, :channel_id, :message_id)
      ORDER BY n.accepted_at DESC, x.at DESC, x.channel_id DESC, x.id DESC LIMIT :limit) AS m;

-- name: later_than_tap
-- What was accepted after a tap and has no row because of one that the tap ends: (channel, id). Nothing comes meanwhile.
WITH pairs AS MATERIALIZED (
    SELECT u.sender_id, u.channel_id, min(coalesce(x.seq, 0)) AS seq
    FROM undelivered AS u
    LEFT JOIN messages AS x ON x.channel_id = u.channel_id AND x.id = u.message_id
    WHERE u.receiver_id = :user AND u.accepted_at > :since AND u.accepted_at <= :at
    GROUP BY u.sender_id, u.channel_id),
sets AS MATERIALIZED (
    SELECT s.id FROM away_sets AS s
    WHERE s.channel_id IN (SELECT channel_id FROM pairs)
        AND EXISTS (SELECT 1 FROM json_each(s.receivers) AS r WHERE r.value = :user))
SELECT json_array(json_array(), json_group_array(json_array(channel_id, id)))
FROM (SELECT x.channel_id, x.id FROM pairs AS p
      CROSS JOIN messages AS x ON x.channel_id = p.channel_id AND x.sender_id = p.sender_id AND x.seq >= p.seq
      WHERE x.accepted_at > :at AND x.away_set IN (SELECT id FROM sets)
      UNION
      SELECT x.channel_id, x.id FROM pairs AS p
      CROSS JOIN messages AS x ON x.channel_id = p.channel_id AND x.sender_id = p.sender_id AND x.seq IS NULL
      WHERE x.accepted_at > :at AND x.away_set IN (SELECT id FROM sets));

-- name: renew_undelivered
-- Rows for what `later_than_tap` has found.
INSERT INTO undelivered
SELECT :user, x.accepted_at, x.sender_id, x.channel_id, x.id FROM json_each(:later) AS k
CROSS JOIN messages AS x ON x.channel_id = k.value ->> 0 AND x.id = k.value ->> 1
WHERE true
ON CONFLICT DO NOTHING;

-- name: receivers_after
-- The next of those who have anything undelivered, each found by one look at the index.
WITH RECURSIVE found (receiver_id, n) AS (
    SELECT * FROM (SELECT min(receiver_id), 1 FROM undelivered WHERE receiver_id > :after)
    UNION ALL
    SELECT (SELECT min(u.receiver_id) FROM undelivered AS u WHERE u.receiver_id > f.receiver_id), f.n + 1
    FROM found AS f WHERE f.receiver_id IS NOT NULL AND f.n < :limit)
SELECT json_group_array(receiver_id) FROM found WHERE receiver_id IS NOT NULL;

-- name: expire_undelivered
-- What was shown by a tap and is older than it need be, of these receivers.
DELETE FROM undelivered WHERE (receiver_id, accepted_at, sender_id, channel_id, message_id) IN (
    SELECT u.receiver_id, u.accepted_at, u.sender_id, u.channel_id, u.message_id FROM json_each(:keys) AS k
    CROSS JOIN user_activity AS a ON a.user_id = k.value AND a.last_tap <= :tapped
    CROSS JOIN undelivered AS u ON u.receiver_id = a.user_id AND u.accepted_at <= min(a.last_tap, :before)
    LIMIT :limit);

-- name: receivers_before
-- Of these receivers, those who have anything that is as old.
SELECT json_group_array(k.value) FROM json_each(:keys) AS k
WHERE EXISTS (SELECT 1 FROM undelivered AS u WHERE u.receiver_id = k.value AND u.accepted_at <= :before);

-- name: expire_untapped
-- What is as old, of these receivers.
DELETE FROM undelivered WHERE receiver_id IN (SELECT value FROM json_each(:keys)) AND accepted_at <= :before;

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
UPDATE members SET active = 0, joined_seq = 0, joined_at = 0, skipped = '[]', {preferences default}
WHERE channel_id = :channel OR (channel_id > :first AND channel_id < :last);

-- name: purge_receipts
-- Nothing of a deleted channel and its threads is read any more; a new epoch, so that late reads do nothing.
-- Whoever wrote from outside has a pointer without a membership.
INSERT INTO read_receipts
SELECT user_id, channel_id, 1, 0, '[]', NULL, NULL, 0, 0
FROM (SELECT user_id, channel_id FROM members
      WHERE channel_id = :channel OR (channel_id > :first AND channel_id < :last)
      UNION
      SELECT user_id, channel_id FROM read_receipts
      WHERE channel_id = :channel OR (channel_id > :first AND channel_id < :last)) WHERE true
ON CONFLICT (user_id, channel_id) DO UPDATE SET
    epoch = epoch + 1, last_read_seq = 0, apart = '[]', last_read_id = NULL, last_read_at = NULL, read_at = 0;

-- name: purge_threads
-- The threads of a deleted channel; their seqs go on.
UPDATE channels SET deleted = 1, latest_id = NULL, latest_seq = NULL, latest_at = NULL, latest_sender = NULL,
    latest_preview = NULL, member_count = 0
WHERE channel_id > :first AND channel_id < :last;

-- name: begin_log_positions
-- Up to where these parts of a log are applied.
SELECT json_group_array(json_array(part, base, position, CASE epoch_position WHEN position THEN epoch ELSE -1 END))
FROM log_places WHERE log = :source AND part IN (SELECT value FROM json_each(:parts));

-- name: open_log_positions
-- Parts of a log that nothing was applied of yet: their log positions come after all that ever were.
INSERT INTO log_places (log, part, base, position)
SELECT :source, k.value, n.position, n.position
FROM json_each(:parts) AS k,
    (SELECT max((SELECT coalesce(max(position), 0) FROM channels),
                (SELECT coalesce(max(position), 0) FROM log_places)) AS position) AS n
WHERE true
ON CONFLICT DO NOTHING;

-- name: move_log_positions
-- Everything up to these log positions is applied: (part, base, position, leader epoch, who had a connection meanwhile,
-- and from which offset on what was known of that before is kept).
UPDATE log_places SET base = k.value ->> 1, position = k.value ->> 2, epoch = k.value ->> 3,
    epoch_position = k.value ->> 2,
    reached = (SELECT json_group_array(json(r.value)) FROM
               (SELECT value FROM json_each(log_places.reached) WHERE value ->> 0 >= k.value ->> 5
                UNION ALL SELECT value FROM json_each(k.value -> 4)) AS r)
FROM json_each(:positions) AS k WHERE log = :source AND part = k.value ->> 0;

-- name: log_positions
-- Up to where the parts of a log are applied.
SELECT json_group_array(json_array(part, base, position, -1)) FROM log_places WHERE log = :source;

-- name: cut_log_position
-- A partition ends at an offset below the applied one: records from there on are new, and get the next positions. Not
-- if another process has noticed it since. The epoch stays: it shows which records before that offset are new as well.
UPDATE log_places SET base = position - :offset, reached = '[]'
WHERE log = :source AND part = :part AND base = :base AND position - base > :offset;

-- name: away_of
-- Of messages (channel, id), those that came while receivers were away: (channel, id, sender, accepted at, receivers).
SELECT json_group_array(json_array(m.channel_id, m.id, m.sender_id, m.accepted_at, json(s.receivers)))
FROM json_each(:keys) AS k
CROSS JOIN messages AS m ON m.channel_id = k.value ->> 0 AND m.id = k.value ->> 1
CROSS JOIN away_sets AS s ON s.id = m.away_set;

-- name: undelivered_of
-- Of rows (receiver, accepted at, sender, channel, message), those that are there.
SELECT json_group_array(json(k.value)) FROM json_each(:keys) AS k
WHERE EXISTS (
    SELECT 1 FROM undelivered AS u
    WHERE u.receiver_id = k.value ->> 0 AND u.accepted_at = k.value ->> 1 AND u.sender_id = k.value ->> 2
        AND u.channel_id = k.value ->> 3 AND u.message_id = k.value ->> 4);

-- name: reached_in
-- Who had a connection when the last batches of these parts of a log were stored: (part, offset, user).
SELECT json_group_array(json_array(p.part, r.value ->> 0, r.value ->> 1))
FROM log_places AS p, json_each(p.reached) AS r
WHERE p.log = :source AND p.part IN (SELECT value FROM json_each(:parts));

-- name: members_until
-- Some of those who are in a channel since then or longer.
SELECT json_group_array(user_id)
FROM (SELECT user_id FROM members WHERE channel_id = :channel AND active AND joined_at <= :at LIMIT :limit);

-- name: erased
-- Of these hashes of ids, those of users who were erased, and when.
SELECT json_group_array(json_array(user_hash, at)) FROM erased
WHERE user_hash IN (SELECT value FROM json_each(:keys));

-- name: newest_erasure
-- When a user was last erased; -1: nobody was.
SELECT coalesce(max(at), -1) FROM erased;

-- name: note_erased
-- A user was erased.
INSERT INTO erased (user_hash, at) VALUES (:hash, :at)
ON CONFLICT (user_hash) DO UPDATE SET at = max(at, excluded.at);

-- name: erased_until
-- Up to when a user may have been erased: when that was, or a time before which it is no longer noted.
SELECT max(coalesce((SELECT at FROM erased WHERE user_hash = :hash), 0),
    coalesce((SELECT value FROM meta WHERE key = 'erased'), 0));

-- name: round_erased
-- What is not noted for each user any more is noted for all of them.
INSERT INTO meta (key, value) SELECT 'erased', max(at) FROM erased WHERE at < :before HAVING count(*) > 0
ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value);

-- name: expire_erased
-- Nothing from before then is on its way any more.
DELETE FROM erased WHERE at < :before;

-- name: drop_receipt
-- Whoever was erased has no read pointer.
DELETE FROM read_receipts WHERE user_id = :user AND channel_id = :channel;

-- name: put_once_named
-- Whom edits of messages in big channels name no more.
INSERT INTO once_named SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:rows) WHERE true
ON CONFLICT DO NOTHING;

-- name: once_named
-- Whom earlier versions of messages (channel, id) named.
SELECT json_group_array(json_array(o.channel_id, o.message_id, o.user_id))
FROM json_each(:keys) AS k
JOIN once_named AS o ON o.channel_id = k.value ->> 0 AND o.message_id = k.value ->> 1;

-- name: purge_once_named
-- Of a deleted channel.
DELETE FROM once_named WHERE channel_id = :channel;

-- name: note_gone
-- A channel was deleted, under this change number.
INSERT INTO gone (channel_id, change) VALUES (:channel, :change)
ON CONFLICT (channel_id) DO UPDATE SET change = excluded.change;

-- name: gone
-- The change numbers under which channels were deleted last.
SELECT json_group_array(json_array(g.channel_id, g.change))
FROM json_each(:keys) AS k
JOIN gone AS g ON g.channel_id = k.value;
