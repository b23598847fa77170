-- Who had a connection when the last batch of a partition was stored, as [offset, user]: should it come again, it is made
-- sure that it gets through to them.
ALTER TABLE log_places ADD COLUMN reached jsonb NOT NULL DEFAULT '[]';
