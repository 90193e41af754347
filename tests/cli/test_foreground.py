"""System limits that a daemon's process raises."""

import resource
import subprocess
import sys

import pytest

# A process may lower the hard limit and not raise it again, so the highest one comes first.
HARD = (10_000, 8192, 1000)
CODE = f"""
import resource
from shoal.cli.foreground import allow_sockets
for hard in {HARD}:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    allow_sockets()
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_limit_of_open_files_is_raised_as_far_as_allowed() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < max(HARD):
        pytest.skip(f"this machine allows {most} open files")
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["8192 10000", "8192 8192", "1000 1000"]
