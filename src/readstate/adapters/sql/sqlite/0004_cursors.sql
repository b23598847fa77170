-- Keys that the service makes for itself and shows to no one. The first process that needs one makes it.
CREATE TABLE secrets (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Where in the log the join stands. A device that comes back hears of no message from before it.
ALTER TABLE members ADD COLUMN joined_position INTEGER NOT NULL DEFAULT 0;
