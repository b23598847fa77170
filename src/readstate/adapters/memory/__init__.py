"""Hot state, log and bus of the embedded profile, in the memory of one process."""
