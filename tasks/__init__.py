"""Inference across nodes: hardware probe, placement of layers, engine processes, sessions, jobs."""
