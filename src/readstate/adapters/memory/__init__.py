"""The ports in this process's memory: hot state, log and bus of the embedded profile."""
