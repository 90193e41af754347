"""Stores the result of a probe in the data folder. A stored result counts only for the hardware,
driver and torch that it was measured with."""

import json
from pathlib import Path

from ...transport.decoding import read_json
from ...transport.errors import HostError, Undecodable
from ...transport.host.seam import Host
from ...transport.message import Message
from .defaults import RECORD_BYTES, RECORD_FILE
from .facts import Report


class _Record(Message, frozen=True):
    fingerprint: str
    report: Report

    def check(self) -> None:
        self.report.check()


def load_report(host: Host, folder: Path, fingerprint: str) -> Report | None:
    """Return the stored report of this hardware, or None if it is absent, damaged or belongs to
    other hardware. Blocks."""
    try:
        data = host.files.read(folder / RECORD_FILE, limit=RECORD_BYTES)
        found = read_json(_Record, data, limit=RECORD_BYTES)
    except (OSError, HostError, Undecodable):
        return None
    return found.report if found.fingerprint == fingerprint else None


def store_report(host: Host, folder: Path, fingerprint: str, report: Report) -> None:
    """Store a report atomically. Blocks. Raises OSError if the disk fails."""
    record = _Record(fingerprint, report)
    text = json.dumps(record, default=Message.fields, indent=1)
    host.files.write(folder / RECORD_FILE, text.encode())
