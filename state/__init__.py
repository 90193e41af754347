"""What the cluster agrees on: signed documents by single authors, and views over them."""
