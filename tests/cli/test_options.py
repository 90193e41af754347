"""Command-line options become the daemon's settings."""

from pathlib import Path
from typing import Any

import pytest

from shoal.cli import foreground
from shoal.cli.main import invoke
from shoal.node.defaults import API_PORT
from shoal.node.settings.config import NodeConfig
from shoal.node.settings.settings import remember
from shoal.transport.host.real import RealHost
from shoal.transport.strategies.dialer import ALL_STRATEGIES, Strategies

PEER = "12D3KooWCP6VZQiJUdnH7Wz6YoTWUQgVgC95rqWidK7U325vkzsS"


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[NodeConfig]:
    """Return the list of configurations with which a daemon would have run."""
    found: list[NodeConfig] = []

    def run(config: NodeConfig, options: dict[str, str], _parent_fd: int | None) -> None:
        found.append(remember(RealHost(), config.folder, options).applied(config))

    monkeypatch.setattr(foreground, "run_foreground", run)
    return found


def config_of(given: list[NodeConfig], line: str) -> NodeConfig:
    assert invoke(["node", *line.split()]) == 0
    return given.pop()


def test_defaults_without_options(given: list[NodeConfig], tmp_path: Path) -> None:
    config = config_of(given, "")
    assert (config.relay, config.up, config.down, config.port_443) == (None, None, None, None)
    assert (
        config.strategies == ALL_STRATEGIES
        and config.browsers is None
        and config.libp2p_relays == ()
    )
    assert config.data == tmp_path and config.jobs is None


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("--relay 1MB", "relay", 10**6),
        ("--relay none", "relay", 0),
        ("--relay 0", "relay", 0),
        ("--no-port-443", "port_443", False),
        ("--up 4Mbit", "up", 500_000),
        ("--down 2MiB/s", "down", 2 << 20),
        ("--port-443", "port_443", True),
        ("--no-lan", "strategies", Strategies(lan=False)),
        ("--no-port-mapping", "strategies", Strategies(mapping=False)),
        ("--jobs", "jobs", True),
        ("--no-jobs", "jobs", False),
        ("--no-udp --no-lan", "strategies", Strategies(udp=False, lan=False)),
        ("--browsers 127.0.0.1:8080", "browsers", ("127.0.0.1", 8080)),
        ("--api 9000", "api", 9000),
        ("--api 0", "api", 0),
        ("--api no", "api", None),
        ("--api default", "api", API_PORT),
    ],
)
def test_an_option(given: list[NodeConfig], line: str, field: str, value: Any) -> None:
    assert getattr(config_of(given, line), field) == value


def test_libp2p_relays(given: list[NodeConfig]) -> None:
    text = f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER}"
    (relay,) = config_of(given, f"--libp2p-relay {text}").libp2p_relays
    assert str(relay) == text


def test_options_apply_to_later_starts_until_removed(given: list[NodeConfig]) -> None:
    first = config_of(given, "--memory 1GiB --no-lan --bootstrap 1.2.3.4:5 --bootstrap [::1]:6")
    assert config_of(given, "") == first and len(first.bootstrap) == 2
    assert config_of(given, "--memory 2GiB").memory == 2 << 30
    again = config_of(given, "--lan --bootstrap default --memory default")
    assert again == config_of(given, "") == NodeConfig(first.data, api=API_PORT, measure=True)
