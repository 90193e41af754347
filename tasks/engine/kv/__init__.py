"""Keys and values that a shard has computed: blocks, their tables, copies and parts, and states.

Rules without tensors: the devices' memory is in `compute/kv.py`. Public: `blocks` (pool, tables and
names of blocks), `parts` (a range of layers and positions as bytes), `arrival` (parts from other
nodes), `ahead` (parts that arrive while the session computes), `copy` (a whole session), `states`
(of recurrent layers). Imports `families/`, and the engine's errors and interface.
"""
