"""The kinds of jobs that this version knows."""

from collections.abc import Mapping
from typing import Any, Final

from .embed import Embed
from .evaluate import Evaluate
from .generate import Generate
from .kind import Kind

KINDS: Final[Mapping[str, Kind[Any]]] = {
    kind.name: kind for kind in (Generate(), Embed(), Evaluate())
}
"""All kinds, by their names."""
