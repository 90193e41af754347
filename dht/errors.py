"""What can go wrong with models, their chunks, and with finding who has them.

ModelError                  a model, its folder or its chunks; `code` is a short fixed word
├── ChunkMissing            a chunk is not on this disk
├── ChunkCorrupt            bytes are not what their digest says
├── DiskFull                no room; says how much is needed and how much is free
│   └── QuotaFull           the owner's limit is reached
└── FetchFailed             the peers did not provide what was asked for
DhtError                    finding and publishing; `code` is a short fixed word
├── BadRecord               a record is not taken; the codes are in docs/spec/records.md
└── BadMessage              a message about records is malformed or out of bounds

The codes a person may meet are listed in docs/spec/model.md.
"""

from pathlib import Path

from ..transport.errors import MISHAP, ShoalError

OTHERS_HINT = (
    "whoever made this model made it wrong, or to deceive; "
    "`shoal find NAME` shows who offers others of its name"
)


class ModelError(ShoalError):
    """Something is wrong with a model; `code` is a short fixed word, the rest is for people."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class ChunkMissing(ModelError):
    """A chunk is not in the store."""

    def __init__(self, digest: str) -> None:
        super().__init__("chunk-missing", f"chunk {digest[:16]} is not on this disk")
        self.digest = digest


class ChunkCorrupt(ModelError):
    """Bytes do not have the digest they were asked by; a stored copy has been removed."""

    def __init__(self, digest: str, where: str) -> None:
        super().__init__("chunk-corrupt", f"chunk {digest[:16]} {where} has other bytes")
        self.digest = digest


class DiskFull(ModelError):
    """No room for what is to be stored; `needed`, `free` and `reserve` are bytes.

    `free` is what may be used, beyond the reserve that always stays free.
    """

    own = True

    def __init__(self, folder: Path, needed: int, free: int, reserve: int = 0) -> None:
        beyond = f" beyond the {mebibytes(reserve)} that stay free" if reserve else ""
        super().__init__(
            "disk-full",
            f"the disk of `{folder}` is full: {mebibytes(needed)} needed, "
            f"{mebibytes(free)} free{beyond}",
            hint="free some space (a daemon then goes on by itself); what was stored is kept",
        )
        self.needed = needed
        self.free = free


class QuotaFull(DiskFull):
    """The owner's limit on the library is reached, and nothing may go; all are bytes."""

    def __init__(self, limit: int, needed: int, used: int) -> None:
        ModelError.__init__(
            self,
            "quota-full",
            f"the library's limit of {mebibytes(limit)} is reached: {mebibytes(needed)} needed, "
            f"{mebibytes(used)} used by what was added here or is in use",
            hint="allow more: `shoal config set disk SIZE`; or stop serving something",
        )
        self.needed = needed
        self.free = max(0, limit - used)


class FetchFailed(ModelError):
    """The linked peers did not provide what was asked for in time."""


class DhtError(ShoalError):
    """Finding or publishing failed; `code` is a short fixed word, the rest is for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class BadRecord(DhtError):
    """A record is malformed, out of bounds, or not signed by whom it names."""


class BadMessage(DhtError):
    """A message about records is malformed or out of bounds."""

    def __init__(self, message: str) -> None:
        super().__init__("bad-request", message)


def mebibytes(size: int) -> str:
    """A size for people, in MiB, rounded up to a tenth."""
    return f"{-(-size * 10 // 2**20) / 10:,} MiB"


def unreadable(path: Path, error: OSError) -> ModelError:
    """The operating system refused to read a file of a model."""
    return ModelError(
        "unreadable",
        f"cannot read `{path}`: {error.strerror or error}",
        hint=f"look at its owner and mode: `ls -lL '{path}'`",
    )


def unwritable(path: Path, error: OSError) -> ModelError:
    """The operating system refused to write, for another reason than a full disk."""
    return ModelError(
        "unwritable",
        f"cannot write `{path}`: {error.strerror or error}",
        hint=f"look at its owner, its mode and its disk: `ls -ld '{path.parent}'`",
    )


def model_mishap() -> ModelError:
    """What handling a model raises that ran into a mistake of ours (transport/guard.py)."""
    return ModelError(
        MISHAP,
        "this program made a mistake with the model",
        hint="`shoal status` says which; choose another model until that is mended",
    )
