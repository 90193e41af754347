"""The metadata of a GGUF file, typed and bounded."""

import math
from typing import NoReturn

import numpy as np

from ....dht.errors import ModelError
from .header import AGAIN, Header, Value


class Metadata:
    """Typed, bounded access to the metadata of a file.

    `{}` in a key stands for the architecture.
    """

    def __init__(self, header: Header) -> None:
        """Raises ModelError `bad-gguf` if the file does not name its architecture."""
        self._values = header.metadata
        self.architecture = ""
        self.architecture = self.text("general.architecture")

    def _get(self, key: str) -> Value | None:
        return self._values.get(key.replace("{}", self.architecture if "{}" in key else ""))

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            self._bad(key, "is no text")
        return value

    def integer(self, key: str, most: int, default: int | None = None) -> int:
        value = self._get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all():
            value = value[0].item()  # by layer, all the same
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            self._bad(key, f"is no integer of 0 to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or not math.isfinite(value):
            self._bad(key, "is no finite number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key)
        return value if isinstance(value, bool) else default

    def texts(self, key: str) -> list[str]:
        value = self._get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self._bad(key, "is no list of texts")
        return value

    def numbers(self, key: str) -> list[float]:
        value = self._get(key)
        return value.tolist() if isinstance(value, np.ndarray) else []

    def _bad(self, key: str, why: str) -> NoReturn:
        raise ModelError(
            "bad-gguf",
            f"the file's `{key.replace('{}', self.architecture)}` {why}",
            hint=AGAIN,
        )


def unsupported(what: str) -> NoReturn:
    raise ModelError(
        "unsupported-architecture",
        f"this engine cannot compute {what}",
        hint="`shoal model list --supported` shows what it can compute",
    )
