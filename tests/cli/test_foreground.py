"""System limits that a daemon's process raises."""

import resource
import subprocess
import sys

import pytest

CODE = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))
from shoal.cli.foreground import allow_sockets
allow_sockets()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("hard", "soft"), [(1000, 1000), (8192, 8192), (10_000, 8192)])
def test_limit_of_open_files_is_raised_as_far_as_allowed(hard: int, soft: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < hard:
        pytest.skip(f"this machine allows {most} open files")
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(hard=hard)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(soft), str(hard)]
