"""Names of Unix sockets that are short enough for a socket address even if the path of their folder
is long."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Longest path in a socket address, in bytes. The limit is 108 on Linux and 104 on macOS, including
# the final zero byte.
SUN_PATH = 100
DESCRIPTORS = Path("/proc/self/fd")  # open files and folders of this process; only on Linux


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Yield a name by which the socket at `path` can be bound or connected to during the block.

    If `path` is too long for a socket address, the name leads through its folder in another way:
    through an open file descriptor of the folder or, on systems without `/proc`, through a symbolic
    link that only this user can look up. In both cases the socket itself is at `path` and is
    protected by its folder. Raises OSError if the folder cannot be opened.
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
