"""Jobs: what somebody wants done and does not wait for, done by whoever has the time."""
