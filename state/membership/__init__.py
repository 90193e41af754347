"""Who is in the swarm: member records over links, and which members are alive.

Public: `Membership`, `MemberRecord`, `ShardRecord`, `Capacity`. Imports `feeds/`. Specs:
docs/spec/membership.md, docs/spec/liveness.md.
"""
