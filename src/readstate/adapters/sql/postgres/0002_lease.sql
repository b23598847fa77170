-- Which process writes, where only one may: its name, a number that grows with every change of hands, and until when
-- nobody else may take over (in ms by the clock of the database).
CREATE TABLE lease (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    owner text NOT NULL,
    token bigint NOT NULL,
    expires_at bigint NOT NULL
);

INSERT INTO lease (owner, token, expires_at) VALUES ('', 0, 0);

-- Begins a write of such a process. Whoever takes over waits for the writes that have come through here, and those
-- that come later see the new number: a volatile function looks anew with each of its statements.
CREATE FUNCTION require_lease(mine bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(8243107216154682739);
    IF NOT EXISTS (SELECT FROM lease WHERE token = mine) THEN
        RAISE EXCEPTION 'another process has taken it over' USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END
$$;
