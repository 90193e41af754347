"""The kinds of gateway by name."""

from typing import Any

from ..gateway import Gateway
from ..link import LinkSpec
from ..network import Network, Segment


def build(
    kind: str,
    network: Network,
    name: str,
    outside: Segment,
    address: str,
    *,
    link: LinkSpec | None = None,
    site: int = 0,
    **knobs: Any,
) -> Gateway:
    """A gateway of that kind. Raises ValueError for one that is not known."""
    if kind == "router":
        return Gateway(network, name, outside, address, link=link, site=site, **knobs)
    raise ValueError(f"no gateway of kind `{kind}`")
