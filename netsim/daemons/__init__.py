"""The unmodified daemon on simulated hosts: its interface to the world, an engine, a text child."""
