"""Limits and sizes of the probe, with their units."""

from dataclasses import dataclass

RECORD_FILE = "machine.json"  # in the data folder
RECORD_BYTES = 64 * 2**10  # of that file, and of the probe's report
DEVICES = 16
KERNEL_SETS = 16
DEVICE_TEXT_BYTES = 256  # of each text about a device
DEVICE_LEAST = 2**30  # bytes of memory that an accelerator must have
PCI_DEVICES = 512  # entries of the bus that are looked at
SIGN_BYTES = 4096  # read of each file of the system

# Seconds. A probe takes less than PROBE_SECONDS, and more only if loading torch takes that long.
PROBE_SECONDS = 8.0
PROBE_LEAST = 3.0  # left for measuring, however long torch takes to load
PROBE_TIMEOUT = 60.0  # after which the process is killed
RATE_SECONDS = 0.3  # for the rounds of one rate
STEP_SECONDS = 0.1  # for the rounds of a step with one number of rows
WRITE_SECONDS = 0.7
READ_SECONDS = 0.5

PROBE_MEMORY_SHARE = 8  # the probe uses at most this part (1/8) of the free memory at once
PROBE_DISK_BYTES = 128 * 2**20
PROBE_DISK_SHARE = 16  # and at most this part (1/16) of the free disk
PROBE_PIECE = 4 * 2**20  # bytes written or read in one call
BATCH_FACTOR = 1.5  # times as long as one row, up to which more rows count as free
BATCH_STOP = 3.0  # times as long as one row, beyond which no more rows are tried
BATCH_MOST = 1024  # rows


@dataclass(frozen=True, slots=True)
class ProbeSizes:
    """Sizes that a device is measured with. `copied` is in bytes and exceeds most caches; `matrix`
    and `weight` are the rows of square matrices."""

    copied: int
    matrix: int
    weight: int


CPU_SIZES = ProbeSizes(128 * 2**20, 1024, 2048)
GPU_SIZES = ProbeSizes(512 * 2**20, 4096, 4096)
