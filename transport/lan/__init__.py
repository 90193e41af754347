"""Peers on the same network, found by multicast DNS."""
