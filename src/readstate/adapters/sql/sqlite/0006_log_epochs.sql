-- The leader epoch of the last event that is applied of a partition tells a log that lost its end, and uses its offsets
-- again, from events that come again. It counts if `epoch_position` is `position`: older versions move on without it.
ALTER TABLE log_places ADD COLUMN epoch INTEGER NOT NULL DEFAULT -1;
ALTER TABLE log_places ADD COLUMN epoch_position INTEGER NOT NULL DEFAULT -1;
