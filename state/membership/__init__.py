"""Who is in the swarm: member records, which nodes exchange over links, and which members are live.

Public: `Membership`, `MemberRecord`, `ShardRecord`, `Capacity`. Imports `feeds/`. Specs:
docs/spec/membership.md, docs/spec/liveness.md.
"""
