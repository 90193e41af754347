"""Discovery of peers on the same network by multicast DNS."""
