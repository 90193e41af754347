"""What a running node tells its owner on the terminal: its offers, fetches, peers and answers."""
