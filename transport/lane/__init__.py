"""The protocol of a link, without I/O (docs/spec/lane.md): it turns received bytes and the time
into events, and requests into bytes to send.

Public: `Lane`, `Priority`, the events, and the enforcement of the owner's bandwidth caps (`Shaper`,
`PathMeter`). Imports `host/` only to allocate memory.
"""
