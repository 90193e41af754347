"""The kinds of jobs that this version knows."""

from collections.abc import Mapping
from typing import Any, Final

from .embed import Embed
from .generate import Generate
from .kind import Kind

KINDS: Final[Mapping[str, Kind[Any]]] = {kind.name: kind for kind in (Generate(), Embed())}
"""All kinds, by their names."""
