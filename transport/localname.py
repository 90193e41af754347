"""Names of Unix sockets that fit into a socket address, wherever their folder lies."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SUN_PATH = 100  # bytes; sun_path holds 108 on Linux and 104 on macOS, with the closing zero
DESCRIPTORS = Path("/proc/self/fd")  # of this process, as folders; Linux has it


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A name by which `path` can be bound or connected to while the block lasts.

    Where `path` is too long for a socket address, the name leads through its folder: by the
    folder's descriptor, or, without `/proc`, by a symbolic link that only this user can look up.
    The socket itself is always at `path`, with the protection of its folder. Raises OSError.
    """
    if len(os.fsencode(path)) <= SUN_PATH:
        yield str(path)
    elif DESCRIPTORS.is_dir():
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield str(DESCRIPTORS / str(descriptor) / path.name)
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as private:
            link = Path(private) / "d"
            link.symlink_to(path.parent)
            yield str(link / path.name)
            link.unlink()
