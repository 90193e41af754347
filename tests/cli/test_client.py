"""Replies that the client of the control socket refuses."""

from typing import Any

import pytest

from shoal.cli.main import invoke

from .conftest import DHT


@pytest.mark.parametrize("reply", [{}, {**DHT, "size": "large"}, {**DHT, "own": [{}]}])
def test_reply_of_another_version(
    reply: dict[str, Any], fake_daemon: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_daemon({"dht": reply}):
        assert invoke(["dht"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: the daemon's reply is not understood: `")
    assert hint == "hint: the daemon may be of another version: stop it and start it again"


def test_unknown_keys_of_a_reply_are_ignored(
    fake_daemon: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_daemon({"dht": {**DHT, "new": 1}}):
        assert invoke(["dht"]) == 0
    assert "fallback" in capsys.readouterr().out
