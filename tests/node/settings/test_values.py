"""Parsers of setting values."""

import pytest

from shoal.node.errors import BadSetting
from shoal.node.settings.values import (
    parse_api,
    parse_browsers,
    parse_count,
    parse_devices,
    parse_disk,
    parse_layers,
    parse_libp2p_relay,
    parse_listen,
    parse_memory,
    parse_rate,
    parse_relay,
    parse_word,
    parse_yes,
)


def test_layers() -> None:
    assert parse_layers("0:8") == (0, 8)
    assert parse_layers("3:4") == (3, 4)


@pytest.mark.parametrize("text", ["", "3", "3:3", "4:2", "-1:2", "a:b", "1:2:3", "0:999999"])
def test_bad_layers(text: str) -> None:
    with pytest.raises(BadSetting, match="layer range") as raised:
        parse_layers(text)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 << 30),
        ("4 gib", 4 << 30),
        ("4G", 4 * 10**9),
        ("1.5KiB", 1536),
        ("512MB", 512 * 10**6),
        ("7b", 7),
    ],
)
def test_memory(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "lots", "4 GiB RAM", "-1", "4PiB", "1e9", "9" * 40])
def test_bad_memory(text: str) -> None:
    with pytest.raises(BadSetting, match="size"):
        parse_memory(text)


def test_disk() -> None:
    assert parse_disk("200GiB") == 200 << 30
    assert parse_disk("auto") == "auto"
    assert parse_disk("none") is None


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("4", "4GiB"),
        ("0", "4GiB"),
        ("511.5", "511.5GiB"),
        ("4096", "4096MiB"),
        ("4294967296", "4294967296B"),
    ],
)
def test_a_size_without_a_unit_is_refused(text: str, hint: str) -> None:
    """`--memory 4` used to mean four bytes."""
    for option, read in (("memory", parse_memory), ("disk", parse_disk)):
        with pytest.raises(BadSetting, match="has no unit") as raised:
            read(text)
        assert f"`--{option} {hint}`" in str(raised.value.hint)


@pytest.mark.parametrize("text", ["5", "10000", "0.5", "1000/s"])
def test_a_rate_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="has no unit") as raised:
        parse_rate(text, "down")
    assert "`--down 8Mbit`" in str(raised.value.hint)
    with pytest.raises(BadSetting, match="has no unit"):
        parse_relay(text)


def test_other_values() -> None:
    assert (parse_yes("yes"), parse_yes("No"), parse_count("64", 2, 512)) == (True, False, 64)
    for wrong in ("maybe", "", "1", "true"):
        with pytest.raises(BadSetting, match="neither"):
            parse_yes(wrong)
    for wrong in ("1", "513", "-5", "6.4", "\u0663", "9" * 30, ""):
        with pytest.raises(BadSetting, match="from 2 to 512"):
            parse_count(wrong, 2, 512)
    with pytest.raises(BadSetting, match="none of `a`, `b`"):
        parse_word("c", ("a", "b"))


@pytest.mark.parametrize("text", ["", "255MiB", "0B", "unlimited"])
def test_bad_disk(text: str) -> None:
    with pytest.raises(BadSetting, match=r"at least 256 MiB|not a size") as raised:
        parse_disk(text)
    assert "--disk none" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1MB", 10**6),
        ("1 MB/s", 10**6),
        ("1.5MiB/s", 3 << 19),
        ("500k", 500_000),
        ("8Mbit", 10**6),
        ("8mbit/s", 10**6),
        ("10000B", 10_000),
    ],
)
def test_rate(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1", "1e9", "1MB/h", "1Mbits", "9" * 40, "inf"])
def test_bad_rate(text: str) -> None:
    with pytest.raises(BadSetting, match="rate") as raised:
        parse_rate(text)
    assert raised.value.hint


@pytest.mark.parametrize("text", ["0B", "5b/s", "9.9kB", "79999bit"])
def test_rate_that_is_too_low_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="too little"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("127.0.0.1:4001", ("127.0.0.1", 4001)),
        ("127.0.0.1", ("127.0.0.1", None)),
        (":4001", ("0.0.0.0", 4001)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:4001", ("::1", 4001)),
        ("::1", ("::1", None)),
        ("/ip4/127.0.0.1/tcp/4001", ("127.0.0.1", 4001)),
        ("/ip6/::1/tcp/9", ("::1", 9)),
    ],
)
def test_listen(text: str, listen: tuple[str, int | None]) -> None:
    assert parse_listen(text) == listen


@pytest.mark.parametrize(
    "text", ["example.org:80", "1.2.3:4", "1.2.3.4:70000", "/ip4/x/tcp/1", "[::1", "1.2.3.4:x"]
)
def test_bad_listen(text: str) -> None:
    with pytest.raises(BadSetting, match="listen"):
        parse_listen(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("[::1]:0", ("::1", 0)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
    ],
)
def test_browsers(text: str, place: tuple[str, int]) -> None:
    assert parse_browsers(text) == place


@pytest.mark.parametrize(
    "text", ["", "8080", ":8080", "127.0.0.1", "localhost:80", "1.2.3.4:99999", "::1:80", "[::1]"]
)
def test_bad_browsers(text: str) -> None:
    with pytest.raises(BadSetting, match="for browsers") as raised:
        parse_browsers(text)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("text", "port"), [("yes", 8462), ("no", None), ("0", 0), ("9000", 9000), ("65535", 65535)]
)
def test_api(text: str, port: int | None) -> None:
    assert parse_api(text) == port


@pytest.mark.parametrize("text", ["", "65536", "-1", "127.0.0.1:80", "on", "8462x", "99999999999"])
def test_bad_api(text: str) -> None:
    with pytest.raises(BadSetting, match="not a port for the API") as raised:
        parse_api(text)
    assert raised.value.hint


RELAY = "12D3KooWCP6VZQiJUdnH7Wz6YoTWUQgVgC95rqWidK7U325vkzsS"


def test_libp2p_relay_address() -> None:
    text = f"/ip4/192.0.2.7/tcp/4001/p2p/{RELAY}"
    assert str(parse_libp2p_relay(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "192.0.2.7:4001",
        "/ip4/192.0.2.7/tcp/4001",
        f"/ip4/192.0.2.7/udp/4001/quic-v1/p2p/{RELAY}",
        f"/ip4/192.0.2.7/tcp/4001/p2p/{RELAY}/p2p-circuit/p2p/"
        "12D3KooWLmcSnhpLvg6sus3ieakAU2Q9AndtuM9d9rucAkewBXca",
    ],
)
def test_libp2p_relay_without_port_or_peer_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="peer id of a relay") as raised:
        parse_libp2p_relay(text)
    assert "/p2p/" in str(raised.value.hint)


@pytest.mark.parametrize("text", ["auto", "cpu", "cuda", "cuda:0", "cuda:15", "xpu:1", "mps"])
def test_device(text: str) -> None:
    assert parse_devices(text) == (text,)


@pytest.mark.parametrize("text", ["", "cuda:", "cuda:100", "CUDA:0", "cuda:0 ", "a", "x" * 20])
def test_bad_device(text: str) -> None:
    with pytest.raises(BadSetting):
        parse_devices(text)


def test_several_devices() -> None:
    assert parse_devices("cuda:0 cuda:1 cpu") == ("cuda:0", "cuda:1", "cpu")
    with pytest.raises(BadSetting, match="17 devices are more than 16"):
        parse_devices(" ".join(["cpu"] * 17))
