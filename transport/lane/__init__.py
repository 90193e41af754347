"""The protocol of a link, without I/O: bytes and `now` in, bytes and events out
(docs/spec/lane.md).

Public: `Lane`, `Priority`, the events, and the owner's bandwidth caps (`Shaper`, `Meter`). Imports
`host/` for memory only.
"""
