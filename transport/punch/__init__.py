"""Reaching a peer through both sides' NATs: candidates, checks, simultaneous open, prediction."""
