"""Models that other engines serve on members' machines: offered, asked for, forwarded as text.

On the owner's node, `sharing.py` watches the engines and publishes the models that answer,
`desk.py` answers requests of peers, and `engine.py` asks an engine over HTTP. On the gateway,
`asking.py` chooses a sharer and forwards a request to it, and `answering.py` tells shared models
from those that have a root. Public: `Sharing`, `SharingDesk`, `Asking`, `Answering`. Spec:
docs/spec/sharing.md.

Imports `inference/`, `text/`, `usage/`, `state/`, `dht/` and `transport/`.
"""
