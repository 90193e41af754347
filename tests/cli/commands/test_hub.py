"""`shoal model add ORG/NAME` at a terminal, from a hub on this machine, interrupted and
repeated."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

from tests.tasks.models.test_hub import WEIGHTS, Handler, Server

SHOWN = 4 << 20  # bytes after which the hub sends slowly
SHOWS = r"downloading [^\r]* [4-7]\.\d MiB of 9\.0 MiB"
COMMAND = (sys.executable, "-m", "shoal.cli.main", "model", "add", "org/tiny", "--data")


class Terminal:
    """A command at a terminal of 100 columns, which the test reads."""

    def __init__(self, *command: str, environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**env, **environment, "TERM": "xterm"},
        )  # fmt: skip
        os.close(theirs)
        self.text = ""

    def read(self, until: str = "") -> str:
        """Read to the end, or until a text of this pattern was shown. Returns all that was."""
        while not (until and re.search(until, self.text)):
            try:
                piece = os.read(self._ours, 1 << 16)
            except OSError:  # Linux reports a closed terminal this way
                piece = b""
            if not piece:
                break
            self.text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", piece.decode(errors="replace"))
        return self.text

    def ended(self) -> int:
        """The command's status. Reads to the end first."""
        self.read()
        os.close(self._ours)
        return self.process.wait(30)


def slowly(handler: Handler, name: str, content: bytes) -> bool:
    """Send the first part of the weights at once, and the rest a little at a time."""
    if name != WEIGHTS:
        return False
    handler.send(content[:SHOWN], length=len(content))
    try:
        for at in range(SHOWN, len(content), 1 << 16):
            handler.wfile.write(content[at : at + (1 << 16)])
            time.sleep(0.05)
    except OSError:  # the command has ended
        pass
    return True


def test_a_download_shows_how_far_it_is_and_continues_where_it_was_interrupted(
    tmp_path: Path,
) -> None:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    command, hub = [*COMMAND, str(tmp_path / "data")], {"HF_ENDPOINT": server.url}
    try:
        server.behave = slowly
        first = Terminal(*command, environment=hub)
        shown = first.read(SHOWS)
        first.process.send_signal(signal.SIGINT)
        assert first.ended() != 0, first.text
        assert re.search(SHOWS, shown), shown
        server.behave = None
        second = Terminal(*command, environment=hub)
        assert second.ended() == 0, second.text
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert "added tiny: 6 layers" in second.text
    assert re.search(r"storing [^\r]* 8\.9 MiB of 8\.9 MiB", second.text), second.text
    start = int(server.requested(WEIGHTS)[-1]["Range"].removeprefix("bytes=").rstrip("-"))
    assert SHOWN <= start < len(server.files[WEIGHTS])
    listed = subprocess.run(
        [*COMMAND[:4], "list", "--json", "--data", str(tmp_path / "data")],
        capture_output=True, check=True,
    )  # fmt: skip
    assert [each["name"] for each in json.loads(listed.stdout)["models"]] == ["tiny"]
