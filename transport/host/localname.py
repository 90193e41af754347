"""Names of Unix sockets that fit into a socket address, even if their folder's path is long."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SUN_PATH = 100  # bytes; sun_path has 108 on Linux and 104 on macOS, with the final zero byte
DESCRIPTORS = Path("/proc/self/fd")  # this process's open folders, by descriptor; Linux only


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Yield a name by which `path` can be bound or connected to during the block.

    If `path` is too long for a socket address, the name leads through its folder: through the
    folder's descriptor, or, without `/proc`, through a symbolic link that only this user can
    look up. The socket itself is always at `path`, protected by its folder. Raises OSError.
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
