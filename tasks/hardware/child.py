"""The probe's process: `python -m shoal.tasks.hardware.child FD FOLDER FREE TOTAL [--list]`.

Measures the machine and sends one `Report`. Afterwards, or when the daemon hangs up, it ends.
"""

import argparse
import importlib.util
import signal
import socket
import sys
import time
from contextlib import suppress

from ...transport.message import pack
from ..engine.worker import offer_to_the_oom_killer
from .defaults import PROBE_LEAST, PROBE_SECONDS
from .facts import Report, clean


def main() -> int:
    """Measure, send the report, and return the exit status."""
    began = time.perf_counter()
    arguments = _arguments()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon decides when to end
    offer_to_the_oom_killer()
    with socket.socket(fileno=arguments.descriptor) as connection, suppress(ConnectionError):
        report = _report(arguments, began)
        if report is not None:
            connection.sendall(pack(report))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shoal.tasks.hardware.child")
    parser.add_argument("descriptor", type=int, help="a connected Unix socket")
    parser.add_argument("folder", help="whose disk is measured")
    parser.add_argument("free", type=int, help="bytes of free memory")
    parser.add_argument("total", type=int, help="bytes of memory")
    parser.add_argument("--list", action="store_true", help="only list the devices")
    parser.add_argument("--threads", type=int, default=1, help="threads torch computes with")
    return parser.parse_args()


def _report(arguments: argparse.Namespace, began: float) -> Report | None:
    """Return the report, or None if the daemon has hung up. `began` is the time of the start in
    seconds."""
    if importlib.util.find_spec("torch") is None:
        return Report(failed="torch is not installed")
    try:
        import torch

        from .devices import build, devices
        from .measure import Abandoned, Budget, measured
    except (ImportError, OSError) as error:  # a damaged installation
        return Report(failed=clean(f"torch cannot be loaded: {error}"))
    if arguments.list:
        return Report(build(), tuple(devices(arguments.total)))
    torch.set_num_threads(arguments.threads)
    left = max(PROBE_LEAST, PROBE_SECONDS - (time.perf_counter() - began))
    budget = Budget(left, arguments.descriptor)
    try:
        return measured(arguments.folder, arguments.free, arguments.total, budget)
    except Abandoned:
        return None


if __name__ == "__main__":
    sys.exit(main())
