"""Hole punching through both sides' NATs: candidates, checks, simultaneous open, prediction."""
