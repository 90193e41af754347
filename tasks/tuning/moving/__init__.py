"""Fine-tunings that move: as jobs, whose state is a checkpoint of content-addressed parts.

Any willing node can be the trainer. When it leaves, is told to stop or dies, another node continues
from the newest checkpoint, with the same result bit for bit. Spec: docs/spec/moving.md.

Public: `FinetuneRunner`, `TrainerStandby`, `MoveRequests`, `RemoteTunings`, `Checkpoints`, `Vault`,
`HeldOutCheck`. Imports `engine/`, `inference/`, `jobs/`, `trainer/`, `state/`, `dht/` and
`transport/`.
"""
