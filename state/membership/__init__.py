"""Membership of the swarm: member records that nodes exchange over links, and members' liveness.

Public: `Membership`, `MemberRecord`, `ShardRecord`, `Capacity`. Imports `views/`. Specs:
docs/spec/membership.md, docs/spec/liveness.md.
"""
