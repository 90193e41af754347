"""Errors of models, chunks and the DHT.

ModelError                  a model, its folder or its chunks; `code` is a short fixed word
├── ChunkMissing            a chunk is not on this disk
├── ChunkCorrupt            bytes do not match the digest of their chunk
├── NotEnoughDisk           the disk has too little space; the message says how much is needed
│   └── QuotaFull           the owner's limit is reached
└── FetchFailed             the peers did not provide the requested data
DhtError                    look-up or publication; `code` is a short fixed word
├── BadRecord               a record is rejected; the codes are in docs/spec/records.md
└── BadMessage              a DHT message is malformed or out of bounds

The codes that a user may see are listed in docs/spec/model.md.
"""

from pathlib import Path

from ..transport.errors import MISHAP, ShoalError

OTHERS_HINT = (
    "the publisher of this model made a mistake, or means to deceive; "
    "`shoal find NAME` lists other offers under its name"
)


class ModelError(ShoalError):
    """Problem with a model or a blob. `code` is a short fixed word, `message` is for people."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class ChunkMissing(ModelError):
    """Error for a chunk that is not in the chunk store."""

    def __init__(self, digest: str) -> None:
        super().__init__("chunk-missing", f"chunk {digest[:16]} is not on this disk")
        self.digest = digest


class ChunkCorrupt(ModelError):
    """Error for bytes that do not match the digest of their chunk.

    If the bytes came from the chunk store, their file has been removed.
    """

    def __init__(self, digest: str, where: str) -> None:
        super().__init__("chunk-corrupt", f"chunk {digest[:16]} {where} does not match its digest")
        self.digest = digest


class NotEnoughDisk(ModelError):
    """Error for `needed` bytes that do not fit on the disk, which has `free` bytes.

    The `reserve`, which must always stay free, is not part of `free`. All are in bytes.
    """

    own = True

    def __init__(self, folder: Path, needed: int, free: int, reserve: int = 0) -> None:
        beyond = f" beyond the reserve of {mebibytes(reserve)}" if reserve else ""
        super().__init__(
            "disk-full",
            f"the disk of `{folder}` is full: needs {mebibytes(needed)}; "
            f"{mebibytes(free)} free{beyond}",
            hint="free some space (a daemon then continues by itself); stored data is kept",
        )
        self.needed = needed
        self.free = free


class QuotaFull(NotEnoughDisk):
    """Error for `needed` bytes that exceed the owner's limit, when nothing more can be evicted.

    `limit`, `needed` and `used` are in bytes.
    """

    def __init__(self, limit: int, needed: int, used: int) -> None:
        ModelError.__init__(
            self,
            "quota-full",
            f"the library's limit of {mebibytes(limit)} is reached: needs {mebibytes(needed)}; "
            f"{mebibytes(used)} were added here or are in use",
            hint="raise the limit with `shoal config set disk SIZE`, or stop serving a model",
        )
        self.needed = needed
        self.free = max(0, limit - used)


class FetchFailed(ModelError):
    """Error for data that the linked peers did not send in time."""


class DhtError(ShoalError):
    """Problem of the DHT or the KV index. `code` is a short fixed word, `message` is for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class BadRecord(DhtError):
    """Error for a record that is malformed, exceeds a limit, or lacks its author's signature."""


class BadMessage(DhtError):
    """Error for a DHT message that is malformed or exceeds a limit."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-request", message)


def mebibytes(size: int) -> str:
    """Format a size in bytes as MiB, rounded up to a tenth."""
    return f"{-(-size * 10 // 2**20) / 10:,} MiB"


def unreadable(path: Path, error: OSError) -> ModelError:
    """Return the error for a file that the operating system refused to read."""
    return ModelError(
        "unreadable",
        f"cannot read `{path}`: {error.strerror or error}",
        hint=f"check its owner and mode: `ls -lL '{path}'`",
    )


def unwritable(path: Path, error: OSError) -> ModelError:
    """Return the error for a write that failed, but not because the disk is full."""
    return ModelError(
        "unwritable",
        f"cannot write `{path}`: {error.strerror or error}",
        hint=f"check its owner, its mode and its disk: `ls -ld '{path.parent}'`",
    )


def model_mishap() -> ModelError:
    """Return the error for an internal error that a model has triggered (transport/guard.py)."""
    return ModelError(
        MISHAP,
        "an internal error occurred while handling the model",
        hint="`shoal status` shows the error; use another model until it is fixed",
    )
