"""Scenarios: an experiment as a TOML file, checked word by word, and the run of it."""
