"""Discovery and content: Kademlia, signed records, content-addressed models, and their transfer."""
