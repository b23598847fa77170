-- The change number of a user's own preferences: an older one never replaces a newer one.
ALTER TABLE user_activity ADD COLUMN user_change bigint NOT NULL DEFAULT 0;
