"""Reader of a `config.json`, which checks the type and bounds of each value.

A config may come from a hostile peer.
"""

from collections.abc import Mapping
from typing import NoReturn

from ..errors import EngineError


class JsonReader:
    """Reader of a JSON object that checks the type and bounds of each value.

    If a key is absent or null, its default is returned. Any method raises EngineError `bad-config`
    if a value is invalid, or if a key without a default is absent.
    """

    def __init__(self, values: Mapping[str, object], what: str = "config.json's") -> None:
        self.values = values
        self._what = what

    def integer(
        self, key: str, low: int, high: int, *, default: int | None = None, null: int | None = None
    ) -> int:
        """Return a number from `low` to `high`. `null` is the result for an explicit null, if that
        differs from absence."""
        value = self.values.get(key)
        if value is None:
            found = null if null is not None and key in self.values else default
            if found is None:
                self.refuse(key, "is missing")
            return found
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(key, f"is not an integer of {low} to {high}")
        return value

    def number(
        self,
        key: str,
        low: float,
        high: float,
        *,
        default: float | None = None,
        null: float | None = None,
    ) -> float:
        """Return a number. `null` is the result for an explicit null, if that differs from
        absence."""
        value = self.values.get(key)
        if value is None:
            found = null if null is not None and key in self.values else default
            if found is None:
                self.refuse(key, "is missing")
            return found
        # The bounds are checked before float(), which would overflow on a huge JSON integer.
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not low <= value <= high
        ):
            self.refuse(key, f"is not a number of {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, "is not true or false")
        return value

    def strings(self, key: str, size: int) -> tuple[str, ...] | None:
        """Return a list of `size` words, or None if there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != size:
            self.refuse(key, f"is not a list of {size} words")
        if not all(isinstance(item, str) for item in value):
            self.refuse(key, f"is not a list of {size} words")
        return tuple(value)

    def numbers(self, key: str, size: int, low: float, high: float) -> tuple[float, ...]:
        """Return a list of `size` numbers."""
        value = self.values.get(key)
        if not isinstance(value, list) or len(value) != size:
            self.refuse(key, f"is not a list of {size} numbers")
        return tuple(JsonReader({key: item}, self._what).number(key, low, high) for item in value)

    def integers(self, key: str, most: int, low: int, high: int) -> tuple[int, ...]:
        """Return a list of at most `most` integers. Without the key, it is empty."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or len(value) > most:
            self.refuse(key, f"is not a list of at most {most} integers")
        return tuple(JsonReader({key: item}, self._what).integer(key, low, high) for item in value)

    def refuse_unless(self, key: str, *only: object) -> None:
        """Raise EngineError `unsupported-architecture` if the key is present and its value is none
        of `only`."""
        value = self.values.get(key)
        if value is not None and value not in only:
            raise unsupported(f"`{key}` {str(value)[:80]!r}")

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise EngineError `bad-config` for the value of a key."""
        raise EngineError(
            "bad-config",
            f"{self._what} `{key}` {problem}",
            hint="use the model's own config.json, as it was published",
        )


def unsupported(what: str) -> EngineError:
    """Return the error `unsupported-architecture`."""
    return EngineError(
        "unsupported-architecture",
        f"this engine cannot compute {what}",
        hint="`shoal model list --supported` prints the families that it can compute",
    )


def quant_method(config: Mapping[str, object]) -> str | None:
    """Return the method by which weights are quantised, "" if it has no name, or None if they are
    not."""
    given = config.get("quantization_config")
    if given is None:
        return None
    method = given.get("quant_method") if isinstance(given, Mapping) else None
    return method if isinstance(method, str) else ""
