"""The process that enters namespaces: its replies, and when it ends."""

import errno
import json
import os
import socket
import subprocess
import sys

import pytest

from shoal.netsim.netns import broker
from shoal.netsim.netns.namespaces import BROKER


def test_an_unknown_request_is_refused() -> None:
    with pytest.raises(OSError, match="not understood") as refused:
        broker.perform({"op": "format", "disk": "c"})
    assert refused.value.errno == errno.EINVAL


def test_a_failure_is_an_answer() -> None:
    answer, made = broker.answer({"op": "sysctl", "settings": {"net.no.such": 1}}, None)
    assert (answer["errno"], made) == (errno.ENOENT, [])


def test_a_socket_belongs_to_the_current_namespace() -> None:
    request = {"op": "socket", "family": socket.AF_INET, "kind": socket.SOCK_DGRAM, "proto": 0}
    answer, [made] = broker.answer(request, None)
    with socket.socket(fileno=made) as sock:
        assert answer == {}
        assert (sock.family, sock.type) == (socket.AF_INET, socket.SOCK_DGRAM)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="namespaces are Linux's")
def test_a_broker_that_has_not_left_need_not_come_back() -> None:
    here = os.stat(broker.HERE).st_ino
    home = os.open(broker.HERE, os.O_RDONLY)
    broker.come_back(home)  # works without root too
    os.close(home)
    assert os.stat(broker.HERE).st_ino == here


def test_it_answers_after_a_refusal_and_ends_with_the_socket() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-I", "-S", str(BROKER), str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
    with process:
        with ours:
            for _ in range(2):
                ours.send(json.dumps({"op": "unheard of"}).encode())
                assert json.loads(ours.recv(1000))["errno"] == errno.EINVAL
        assert process.wait(5) == 0
