"""What others see of this node: observed addresses, the kind of its NAT, dial-back."""
