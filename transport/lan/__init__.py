"""Discovery of peers on the local network by multicast DNS."""
