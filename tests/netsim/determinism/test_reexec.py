"""Restarting the process with fixed hashes and addresses."""

import os
import subprocess
import sys
from typing import Any

import pytest

from shoal.netsim.determinism import reexec as module
from shoal.netsim.determinism.reexec import reexec
from shoal.netsim.errors import SimError

CODE = """
import sys
from shoal.netsim.determinism.reexec import is_exact, reexec
before = is_exact()
{call}
print(before, is_exact(), hash("x"), id(object()), sys.argv[1:])
"""


def printed(*arguments: str, call: str = "reexec()") -> str:
    environment = {**os.environ, "PYTHONHASHSEED": "random"}
    command = [sys.executable, "-c", CODE.format(call=call), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    return done.stdout.decode()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is known to fix addresses")
def test_hashes_and_addresses_are_the_same_in_every_process() -> None:
    first = printed("one", "two words")
    assert first == printed("one", "two words")
    assert first.startswith("True True")  # the output is printed after the restart
    assert "['one', 'two words']" in first
    assert printed(call="pass") != printed(call="pass")


def test_a_system_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system is not asked again and again."""

    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(module, "places_at_random", lambda: True)
    monkeypatch.setattr(os, "execve", never)
    monkeypatch.setenv("SHOAL_SIM_STRICT", "1")
    with pytest.raises(SimError, match="hint: "):
        reexec()
