"""What others see of this node: its address, the kind of its NAT, and who can dial it."""
