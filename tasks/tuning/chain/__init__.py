"""Chains of stages that compute gradients for a trainer on this node.

Public: `TuningChains` (`chains.py`). Each daemon has one, `Node.compute.tuning`. Each
`TuningChains.chain(root, arch)` returns a new `NetworkChain`, which implements `TuningChain`. It
finds and opens its stages, of other nodes and of this one, at the first call, so that making it
costs nothing. A trainer in the daemon uses it like this:

    async with compute.models.use(name) as model:  # inference/models.py: root, tokenizer, arch
        chain = compute.tuning.chain(model.root, model.arch)
        try:
            gradients = await chain.gradients(batch, AdapterTensors(terms, tensors))
        finally:
            await chain.aclose()

`terms.base` must be the root. `batch` may have any number of rows: the chain splits it into parts
that fit its stages, and computes several of them at once. A stage that dies, hangs or refuses is
replaced by another replica, and its part is computed again. Spec: docs/spec/tuning.md.

Imports `engine/`, `inference/`, `routing/`, `stage/`, `state/` and `transport/`.
"""
