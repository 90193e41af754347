"""Stops daemons of other processes, and waits until they have ended."""

import json
import shutil
import time
from pathlib import Path

from . import defaults
from .client import request
from .errors import CommandError, NoDaemon

DEMO_FILE = "demo.json"  # marks a folder that `shoal demo --keep` has left
STAY = b"s"  # a parent writes this to `--parent-fd` so that the node outlives it


def stop_daemon(data: Path) -> None:
    """Ask the daemon to stop, and wait until its process has ended.

    Raises CommandError if no daemon runs, or if it does not end within STOP_TIMEOUT seconds.
    """
    from ..node.control.messages.node import Stop

    try:
        pid = request(data, Stop()).pid
    except NoDaemon as error:
        hint = "there is nothing to stop; `--data DIR` names another data folder"
        raise CommandError(error.code, error.message, hint=hint) from None
    deadline = time.monotonic() + defaults.STOP_TIMEOUT
    while _is_alive(pid):
        if time.monotonic() > deadline:
            raise CommandError(
                "failed", f"the daemon (process {pid}) does not end", hint=f"`kill -9 {pid}`"
            )
        time.sleep(defaults.POLL)


def _is_alive(pid: int) -> bool:
    """Return whether the process still runs. A zombie process does not count."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def remove_demo(folder: Path) -> bool:
    """Stop the nodes that `shoal demo --keep` has left and remove their folder. Return False if the
    folder is not such a folder."""
    try:
        names = json.loads((folder / DEMO_FILE).read_text())["nodes"]
    except (OSError, ValueError, KeyError):
        return False
    for name in names:
        try:
            stop_daemon(folder / Path(name).name)
        except CommandError as error:
            if error.code != "not-running":
                raise
    shutil.rmtree(folder, ignore_errors=True)
    return True
