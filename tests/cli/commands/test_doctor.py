"""Output of `shoal doctor`."""

import json
from typing import Any

import pytest

from shoal.cli.commands.doctor import report
from shoal.cli.main import invoke
from shoal.node.control.messages.encoding import decode
from shoal.node.control.messages.reach import ReachabilityView

from ..conftest import DOCTOR, MACHINE

DEVICES = [
    "devices",
    "  cpu (Ryzen 7, AVX2): 100 Gflop/s in float32, 200 in",
    "    bfloat16, memory 20.0 GB/s, up to 8 rows in the time of",
    "    one",
    "  RTX 4070: not used: torch 2.13.0+cpu was built without",
    "    CUDA",
    "    → install a build with it",
    "  kernels of the cpu: avx2",
    "    not used: avx512bf16, avx512: this processor lacks the",
    "      instructions",
    "  disk: reads 500.0 MB/s",
]


def test_a_report_for_a_person() -> None:
    assert list(report(decode(ReachabilityView, DOCTOR), 60)) == [
        "reachable: through 1 relay",
        "",
        "findings",
        "  the router 192.168.1.1 maps no ports (UPnP: no answer)",
        "    → enable UPnP or NAT-PMP in the router",
        "  1 relay will carry what cannot come directly",
        "",
        "strategies to reach other nodes",
        "  the local network  works",
        "  relays             not known yet",
        "",
        "measured 1 min ago with the help of 2 nodes; `shoal doctor",
        "--again` measures again",
        "",
        *DEVICES,
    ]


def test_long_sentences_are_wrapped_under_their_start() -> None:
    finding = {"code": "x", "sentence": "word " * 30, "hint": "deed " * 30}
    lines = list(report(decode(ReachabilityView, {**DOCTOR, "findings": [finding]}), 40))
    assert all(len(line) <= 40 for line in lines)
    assert lines[4].startswith("  word") and any(line.startswith("      deed") for line in lines)


@pytest.mark.parametrize(
    ("links", "observers", "measured", "words"),
    [
        (0, 0, None, "not measured yet: there are no links"),
        (2, 0, None, "not measured yet: no node was asked"),
        (2, 1, 3.0, "measured 3 s ago with the help of 1 node;"),
        (2, 0, 3.0, "measured 3 s ago with the help of no other node;"),
    ],
)
def test_line_about_the_measurement(
    links: int, observers: int, measured: float | None, words: str
) -> None:
    answer = {**DOCTOR, "links": links, "observers": observers, "measured_s": measured}
    assert words in " ".join(report(decode(ReachabilityView, answer), 100))


@pytest.mark.parametrize("code", ["loopback", "offline"])
def test_local_node_has_no_line_about_a_measurement(code: str) -> None:
    answer = {**DOCTOR, "verdict": {**DOCTOR["verdict"], "code": code}, "findings": []}
    lines = list(report(decode(ReachabilityView, answer), 60))
    assert lines == ["reachable: through 1 relay", "", *DEVICES]


def test_a_device_that_is_free() -> None:
    free = {**MACHINE["devices"][0], "name": "cuda:1", "used": False}
    machine = {**MACHINE, "devices": [free]}
    lines = list(report(decode(ReachabilityView, {**DOCTOR, "machine": machine}), 200))
    assert any(line.endswith("; not in use (`--device cuda:1`)") for line in lines)


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ([], []),
        (
            [{"name": "neon", "unused": "they differ", "beside": None}],
            ["  kernels of the cpu: none, torch computes everything",
             "    not used: neon: they differ"],
        ),
        (
            [{"name": "neon", "unused": None, "beside": "bfloat16: it is faster"}],
            ["  kernels of the cpu: neon", "    torch computes bfloat16: it is faster"],
        ),
    ],
)  # fmt: skip
def test_kernels_in_use_and_why_others_are_not(
    kernels: list[dict[str, Any]], expected: list[str]
) -> None:
    machine = {**MACHINE, "kernels": kernels}
    lines = list(report(decode(ReachabilityView, {**DOCTOR, "machine": machine}), 100))
    assert lines[lines.index("    → install a build with it") + 1 : -1] == expected


@pytest.mark.parametrize(
    ("progress", "words"),
    [("measuring", "is being measured"), ("off", "`--measure`"), ("failed", "could not be")],
)
def test_a_speed_that_is_not_known(progress: str, words: str) -> None:
    devices = [{**MACHINE["devices"][0], "speed": None}]
    failure = "signal 9 killed its process" if progress == "failed" else None
    machine = {**MACHINE, "devices": devices, "progress": progress, "failure": failure}
    lines = list(report(decode(ReachabilityView, {**DOCTOR, "machine": machine}), 100))
    assert any(words in line for line in lines)
    assert (failure is None) == (not any("signal 9" in line for line in lines))


def test_progress_note_goes_to_standard_error(
    fake_daemon: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    async def doctor(request: dict[str, Any], emit: Any) -> Any:
        asked.append(request.get("again"))
        await emit({"event": "measuring"})
        await emit({"event": "of a later version"})
        return DOCTOR

    with fake_daemon({"doctor": doctor}):
        assert invoke(["doctor", "--again", "--json"]) == 0
        out, err = capsys.readouterr()
        assert invoke(["doctor"]) == 0
    assert json.loads(out) == DOCTOR | {"shares": [], "audience": ""}
    assert err.startswith("measuring with the help of other nodes") and err.count("\n") == 1
    assert asked == [True, False]
