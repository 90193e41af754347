"""The backward pass of a shard in torch, for training adapters."""
