"""Reachability of this node: its addresses as peers see them, and the kind of its NAT.

Also tests, by dial-backs from peers, at which of these addresses it can be reached.
"""
