-- The lease of the one process that writes (see lease.py). Times are of the database's clock.

-- name: lease_lock
-- Waits for the writes under way of whoever had the lease, and holds off new ones, until the transaction ends.
SELECT pg_advisory_xact_lock(8243107216154682739);

-- name: lease_take
-- Take it from a holder as it was seen last: the new number, or no row if something has changed since.
UPDATE lease
SET owner = :owner, token = token + 1,
    expires_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + :ms::bigint
WHERE token = :token::bigint AND expires_at = :expires_at::bigint
RETURNING token;

-- name: lease_holder
-- Who has it, its number, until when, and how many ms that is from now.
SELECT owner, token, expires_at, expires_at - (extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM lease;

-- name: lease_renew
-- Keep it. It is still one's own as long as nobody has taken it, even if it had run out.
UPDATE lease
SET expires_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + :ms::bigint
WHERE token = :token::bigint;

-- name: lease_release
-- Let the next one take it at once.
UPDATE lease SET expires_at = 0 WHERE token = :token::bigint;

-- name: little_memory
-- Until the transaction ends, a statement that needs more than this uses the disk.
SELECT set_config('work_mem', '64kB', true);

-- name: spill
-- Writes a temporary file of more than that, which a full disk refuses.
SELECT count(*) FROM generate_series(1, 5000);
