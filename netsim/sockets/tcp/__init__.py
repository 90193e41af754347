"""TCP without I/O: segments and the time go in; segments, bytes and the next wake-up time
come out.
"""
