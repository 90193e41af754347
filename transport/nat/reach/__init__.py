"""Reachability of this node: its addresses as peers see them, and the kind of its NAT.

Also tests, by dial-backs from peers, at which of these addresses it can be reached.

Public: `Reachability`, `Reach`, `ReachFinding`, `findings`, `Behaviour`, and STUN messages
(`StunMessage`). Imports `host/`, `lane/` and `link/`.
"""
