"""The commands. Each file has one command, or one group of commands."""
