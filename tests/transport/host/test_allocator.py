"""Batches do not pay for their memory again and again."""

import subprocess
import sys

import pytest

from shoal.transport.host.allocator import keep_freed_memory

# Like a batch: four buffers of 256 KiB that live at the same time and are freed.
PROGRAM = """
import resource, sys
from shoal.transport.host.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def batch():
    return [bytearray(b"x" * 262144) for _ in range(4)]
for _ in range(8):
    batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    batch()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 50)
"""

pytestmark = pytest.mark.skipif(not keep_freed_memory(), reason="this C library has no mallopt")


def faults_per_batch(mode: str) -> float:
    command = [sys.executable, "-c", PROGRAM, mode]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_batches_reuse_their_memory() -> None:
    assert faults_per_batch("kept") < 1


def test_without_fixed_thresholds_each_batch_pays_again() -> None:
    assert faults_per_batch("default") > 32


# Many blocks that are freed but for one in a hundred: the heap cannot shrink from its end.
HOLES = """
import sys
from shoal.transport.host.allocator import give_back, keep_freed_memory
keep_freed_memory()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
blocks = [b"x" * 40000 + bytes([n % 256]) for n in range(1000)]
blocks = blocks[::100]
before = resident()
if sys.argv[1] == "given":
    give_back()
print((before - resident()) / 1e6)
"""


def given_back(mode: str) -> float:
    """Return a size in megabytes."""
    command = [sys.executable, "-c", HOLES, mode]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_memory_freed_in_the_middle_is_returned_too() -> None:
    assert given_back("given") > 20
    assert given_back("kept") < 1  # the twin
