"""The computing of a shard on one device: weights, layers, attention, KV, choice of tokens.

Only the processes of the engine and of the probe import this package, because it imports torch.
Imports the engine's plans and formats: `activations/`, `families/`, `kv/`, `scheduling/`,
`interface.py` and `shard.py`. Of these, only the worker's core imports it, when it loads the first
shard. Public surface: `torchcompute.TorchCompute`, `device.ComputeDevice`, `products` for the
probe.
"""
