"""TCP without I/O: segments in, `now` in; segments, bytes and a time to be called again out."""
