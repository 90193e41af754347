"""What nodes do with compute: hardware probe, placement, engine workers, sessions."""
