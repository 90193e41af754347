"""Reachability of this node: its address seen from outside, the kind of its NAT, and dial-backs."""
