"""Parsers for the values of settings. Every parser raises BadSetting if the text is invalid."""

import re
from typing import Literal

from ...dht.errors import ModelError
from ...dht.names import read
from ...transport.address import Address
from .. import defaults
from ..errors import BadSetting

_DEVICE = re.compile(r"[a-z]{2,16}(:\d{1,2})?")

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
UNITS |= {f"{unit}i": 1 << (10 * power) for power, unit in enumerate("kmgt", 1)}


def parse_model(text: str) -> str:
    """Return `text` if it has the form of a model's name, NAME@HASH or a root. The model need not
    be known. Raises BadSetting otherwise."""
    try:
        read(text)
    except ModelError as error:
        raise BadSetting(error.message, hint=error.hint) from None
    return text


def parse_layers(text: str) -> tuple[int, int]:
    """Parse a range of layers `A:B`, where B is exclusive. Raises BadSetting if the text has
    another form or the range is empty."""
    found = re.fullmatch(r"(\d{1,5}):(\d{1,5})", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise BadSetting(
            f"`{text}` is not a layer range", hint="`--layers 0:8` means layers 0 to 7"
        )
    return int(found[1]), int(found[2])


def parse_memory(text: str) -> int:
    """Parse a size such as `4GiB`, `512MiB`, `2.5GB` or `4096B`, and return it in bytes. Raises
    BadSetting if the text is not a size or has no unit."""
    return _size(text, "memory")


def _size(text: str, option: str, other: str = "") -> int:
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,6})?)\s*([kmgt]?i?)(b?)", text.strip().lower())
    if found is None or found[2] not in UNITS:
        raise BadSetting(
            f"`{text}` is not a size", hint=f"`--{option} 4GiB` or `--{option} 512MiB`{other}"
        )
    if not found[2] and not found[3]:
        number = float(found[1])
        if not number:
            raise BadSetting(f"`{text}` has no unit", hint=f"`--{option} 4GiB`{other}")
        unit = "GiB" if number < 512 else "MiB" if number < 1_000_000 else "B"
        raise BadSetting(f"`{text}` has no unit", hint=f"add one: `--{option} {found[1]}{unit}`")
    return int(float(found[1]) * UNITS[found[2]])


def parse_disk(text: str) -> int | Literal["auto"] | None:
    """Parse a disk limit: `auto`, `none` (returns None), or a size with unit, which is returned in
    bytes.

    Raises BadSetting if the text is none of these, or if the size is below DISK_LEAST.
    """
    if text == "auto":
        return "auto"
    if text == "none":
        return None
    size = _size(text, "disk", ", or `--disk none` for no limit")
    if size < defaults.DISK_LEAST:
        raise BadSetting(
            f"`{text}` is too little: at least {defaults.DISK_LEAST // 2**20} MiB",
            hint="`--disk 200GiB`, or `--disk none` for no limit",
        )
    return size


def parse_rate(text: str, option: str = "up") -> int:
    """Parse a rate such as `1MB`, `2.5MiB/s` or `8Mbit/s`, and return it in bytes per second.

    `option` is the option that the hints name. Raises BadSetting if the text is not a rate, has no
    unit, or is below RATE_LEAST.
    """
    found = re.fullmatch(
        r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]?i?)(b|bit)?(?:/s)?", text.strip().lower()
    )
    hint = f"bytes per second, such as `--{option} 1MB`, or bits, such as `--{option} 8Mbit`"
    if found is None or found[2] not in UNITS:
        raise BadSetting(f"`{text}` is not a rate", hint=hint)
    if not found[2] and not found[3]:
        raise BadSetting(f"`{text}` has no unit", hint=hint)
    rate = int(float(found[1]) * UNITS[found[2]] / (8 if found[3] == "bit" else 1))
    if rate < defaults.RATE_LEAST:
        raise BadSetting(
            f"`{text}` is too little: at least {defaults.RATE_LEAST // 1000} kB a second", hint=hint
        )
    return rate


def parse_relay(text: str) -> int:
    """Parse a rate with unit, and return it in bytes per second. `none` and `0` give 0. Raises
    BadSetting if the text is neither."""
    return 0 if text.strip().lower() in ("none", "0") else parse_rate(text, "relay")


def parse_listen(text: str) -> tuple[str, int | None]:
    """Parse the address to listen on: `IP:PORT`, `[IPv6]:PORT`, `:PORT`, an IP address or a
    multiaddr.

    Returns (IP address, port). The port is None if the text has none; the node then uses the port
    of its last run. Raises BadSetting if the text has another form.
    """
    if found := re.fullmatch(r"/ip[46]/([^/]+)(?:/tcp/(\d+))?", text):
        host, port = found[1], found[2]
    elif (found := re.fullmatch(r"\[([^\]]*)\](?::(\d+))?", text)) or (
        found := re.fullmatch(r"([^:]*)(?::(\d+))?", text)
    ):
        host, port = found[1] or defaults.LISTEN_ADDRESS, found[2]
    else:
        host, port = text, None
    if not _is_ip(host) or (port is not None and int(port) > 65535):
        raise BadSetting(
            f"`{text}` is not an address to listen on",
            hint="`--listen 0.0.0.0:4001` or `--listen 127.0.0.1`",
        )
    return host, None if port is None else int(port)


def parse_browsers(text: str) -> tuple[str, int]:
    """Parse the address at which browsers are accepted: `IP:PORT` or `[IPv6]:PORT`. Returns (IP
    address, port). Raises BadSetting if the text has another form."""
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+)):(\d{1,5})", text)
    host = (found[1] or found[2]) if found is not None else ""
    if found is None or not _is_ip(host) or int(found[3]) > 65535:
        raise BadSetting(
            f"`{text}` is not an address and port for browsers",
            hint="`--browsers 127.0.0.1:8080` accepts browsers on this computer",
        )
    return host, int(found[3])


def parse_api(text: str) -> int | None:
    """Parse the port of the HTTP API: `yes` gives the default port, `no` gives None, and 0 means a
    free port. Raises BadSetting if the text is neither these nor a port."""
    if text.lower() in ("yes", "no"):
        return defaults.API_PORT if text.lower() == "yes" else None
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65535:
        raise BadSetting(
            f"`{text}` is not a port for the API",
            hint=f"`--api {defaults.API_PORT}`, or `--api no` for no API",
        )
    return int(text)


def parse_libp2p_relay(text: str) -> Address:
    """Parse the multiaddr of a libp2p relay.

    Raises BadSetting if the address does not have a TCP port and the relay's peer id, and
    TransportError if the text is not an address.
    """
    address = Address.parse(text)
    if address.peer is None or address.transport != "tcp" or address.relay is not None:
        raise BadSetting(
            f"`{text}` does not name the TCP port and the peer id of a relay",
            hint="`--libp2p-relay /ip4/192.0.2.7/tcp/4001/p2p/12D3…`, as the relay prints it",
        )
    return address


def parse_yes(text: str) -> bool:
    """Parse `yes` or `no`. Raises BadSetting if the text is neither."""
    if text.lower() not in ("yes", "no"):
        raise BadSetting(f"`{text}` is neither `yes` nor `no`")
    return text.lower() == "yes"


def parse_count(text: str, least: int, most: int) -> int:
    """Parse a whole number from `least` to `most`. Raises BadSetting if the text is not one."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise BadSetting(f"`{text}` is not a whole number from {least} to {most}")
    return int(text)


def parse_word(text: str, words: tuple[str, ...]) -> str:
    """Return `text` if it is one of `words`. Raises BadSetting otherwise."""
    if text not in words:
        raise BadSetting(f"`{text}` is none of {', '.join(f'`{word}`' for word in words)}")
    return text


def parse_devices(text: str) -> tuple[str, ...]:
    """Return the words of a text, each `auto`, `cpu`, or the name of an accelerator in torch, such
    as `cuda:0`. Raises BadSetting for other texts, and for more than MOST_DEVICES words."""
    words = tuple(text.split(" "))
    for word in words:
        if not _DEVICE.fullmatch(word):
            raise BadSetting(
                f"`{word}` is no device",
                hint="`auto`, `cpu`, or one that `shoal doctor` shows, such as `cuda:0`",
            )
    if len(words) > defaults.MOST_DEVICES:
        raise BadSetting(f"{len(words)} devices are more than {defaults.MOST_DEVICES}")
    return words


def _is_ip(text: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
