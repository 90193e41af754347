"""The unmodified daemon on simulated hosts: the seam to the world, an engine, a text child."""
