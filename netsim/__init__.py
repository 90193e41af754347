"""An internet in one process, on which the unmodified daemon runs in virtual time."""
