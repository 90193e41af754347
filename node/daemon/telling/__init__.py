"""Messages of a running node to its owner on the terminal: offers, fetches, peers and answers."""
