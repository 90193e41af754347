"""Turns messages of the control socket into JSON and back.

A message is a frozen dataclass. Its fields become the keys of a JSON object, in the same order.
`decode` checks each value against the type of its field, and against the bounds that are annotated
in that type.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    ClassVar,
    Final,
    Generic,
    Literal,
    Never,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from ...errors import ControlError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
    Object: TypeAlias = dict[str, Json]
    View: TypeAlias = DataclassInstance | Mapping[str, Json]
else:
    Json = object  # `decode` accepts any value in its place
    Object = dict
    View = object

T = TypeVar("T")
Reply = TypeVar("Reply", covariant=True)
Event = TypeVar("Event", covariant=True)

_Reader: TypeAlias = "Callable[[Json, str], object]"
_LEFT_OUT: Final = "left out"
IfKnown = Annotated[T | None, _LEFT_OUT]
"""Type of a field that does not appear in the JSON object if its value is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask(Generic[Reply, Event]):
    """Base of all requests. `Reply` is the type of the reply. `Event` is the union of the types of
    its events, or `Never` if it has none."""

    op: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason why a request failed. `code` is a short fixed word."""

    code: str
    message: str
    hint: str | None


def reply_type(ask: Ask[T, object]) -> type[T]:
    """Return the type of the reply to a request."""
    reply: type[T] = get_args(type(ask).__orig_bases__[0])[0]  # type: ignore[attr-defined]
    return reply


def event_types(ask: Ask[object, T]) -> tuple[type[T], ...]:
    """Return the types of the events of a request."""
    union = get_args(type(ask).__orig_bases__[0])[1]  # type: ignore[attr-defined]
    return () if union is Never else get_args(union) or (union,)


def decode_event(ask: Ask[object, T], message: Object) -> T | None:
    """Return `message` as an event of the request `ask`.

    Returns None if this version does not know the event. Raises ControlError if the event is known
    but malformed.
    """
    for kind in event_types(ask):
        assert is_dataclass(kind)
        names = [field.kind for field in _fields(kind) if field.name == "event"]
        if message.get("event") in get_args(*names):
            return decode(kind, message)
    return None


# Bounds, for use in `Annotated`. `decode` checks them before it reads the value.


class Bound(Protocol):
    """Limits of a value, annotated in the type of a field."""

    def check(self, value: Json, key: str) -> None:
        """Raise ControlError `bad-request` if the value is out of bounds. `key` names the value in
        the error."""
        ...


@dataclass(frozen=True, slots=True)
class TextBound:
    """A text of `least` to `limit` characters that can be encoded as UTF-8."""

    limit: int
    least: int = 1
    hint: str | None = None

    def check(self, value: Json, key: str) -> None:
        if not isinstance(value, str) or not self.least <= len(value) <= self.limit:
            what = f"`{key}` is not a text of {self.least} to {self.limit} characters"
            raise ControlError("bad-request", what, hint=self.hint)
        try:
            value.encode()
        except UnicodeEncodeError:  # bytes of a command line that are not text
            raise ControlError(
                "bad-request",
                f"`{key}` is not UTF-8 text",
                hint="convert it, for example from Latin-1: `iconv -f ISO-8859-1 -t UTF-8`",
            ) from None


@dataclass(frozen=True, slots=True)
class FileName:
    """A text of 1 to 4096 characters that the operating system accepts as a path: it can be
    encoded, and has no NUL."""

    def check(self, value: Json, key: str) -> None:
        if not isinstance(value, str) or not 0 < len(value) <= 4096:
            raise ControlError("bad-request", f"`{key}` is not a text of 1 to 4096 characters")
        try:
            if b"\0" not in os.fsencode(value):
                return
        except UnicodeEncodeError:
            pass
        raise ControlError("bad-request", f"{value[:64]!a} cannot be a file name")


@dataclass(frozen=True, slots=True)
class FixedWord:
    """A word of a fixed list."""

    words: tuple[str, ...]

    def check(self, value: Json, key: str) -> None:
        if value not in self.words:
            said = f"{value[:64]!a} " if isinstance(value, str) else ""
            raise ControlError(
                "bad-request",
                f"{said}cannot be a value of `{key}`",
                hint=f"use one of: {', '.join(self.words)}",
            )


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`."""

    least: int
    most: int

    def check(self, value: Json, key: str) -> None:
        if type(value) is not int or not self.least <= value <= self.most:
            what = f"`{key}` is not a whole number from {self.least} to {self.most}"
            raise ControlError("bad-request", what)


@dataclass(frozen=True, slots=True)
class Number:
    """A number from `least` to `most`."""

    least: float
    most: float

    def check(self, value: Json, key: str) -> None:
        if type(value) not in (int, float) or not self.least <= value <= self.most:  # type: ignore[operator]
            what = f"`{key}` is not a number from {self.least:g} to {self.most:g}"
            raise ControlError("bad-request", what)


@dataclass(frozen=True, slots=True)
class Items:
    """A list of `least` to `most` items."""

    least: int
    most: int

    def check(self, value: Json, key: str) -> None:
        if not isinstance(value, list) or not self.least <= len(value) <= self.most:
            what = f"`{key}` is not a list of {self.least} to {self.most} items"
            raise ControlError("bad-request", what)


# Encoding.


def encode(view: View) -> Object:
    """Return a message as a JSON object."""
    return {name: plain(value) for name, value in entries(view)}


def entries(view: View) -> "Iterator[tuple[str, Json | DataclassInstance]]":
    """Yield the keys of a message and their values, which are not encoded yet."""
    if isinstance(view, Mapping):
        yield from view.items()
        return
    for field in _fields(type(view)):
        value = getattr(view, field.name)
        if value is not None or not field.left_out:
            yield field.name, value


def plain(value: "Json | DataclassInstance | Sequence[DataclassInstance]") -> Json:
    """Return `value` as JSON; messages inside it are encoded."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    return encode(value)


def extended(kind: Callable[..., T], view: "DataclassInstance", **more: object) -> T:
    """Return a new `kind` that has the fields of the message `view`, and the further fields in
    `more`."""
    known = {field.name: getattr(view, field.name) for field in _fields(type(view))}
    return kind(**{**known, **more})


# Decoding. A reader checks and converts a JSON value. There is one for each type; it is cached.


def decode(kind: type[T], value: Json, key: str = "reply") -> T:
    """Return a JSON value as a `kind`, which is a dataclass or any type that a field may have.

    `key` names the value in errors. Keys that the dataclass does not have are ignored. Raises
    ControlError `bad-request` if the value does not fit the type or is out of bounds.
    """
    read: Callable[[Json, str], T] = _reader(kind)  # type: ignore[assignment, arg-type]
    return read(value, key)


def object_of(value: object, key: str) -> Object:
    """Return `value` if it is a JSON object. Raises ControlError if it is anything else."""
    if not isinstance(value, dict):
        raise _mistyped(dict, value, key)
    return value


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: object
    """A type, or a union or annotation of types."""
    required: bool
    left_out: bool


@cache
def _fields(kind: "type[DataclassInstance]") -> tuple[_Field, ...]:
    """Return the fields of a message in the order in which they appear in JSON. A field `event`
    comes first."""
    kinds = get_type_hints(kind, include_extras=True)
    return tuple(
        _Field(
            each.name,
            kinds[each.name],
            each.default is MISSING and each.default_factory is MISSING,
            _LEFT_OUT in getattr(kinds[each.name], "__metadata__", ()),
        )
        for each in sorted(fields(kind), key=lambda each: each.name != "event")
    )


@cache
def _reader(kind: object) -> _Reader:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Json:
        return lambda value, key: value
    if origin is Annotated:
        bounds = [bound for bound in args[1:] if bound is not _LEFT_OUT]
        return _bounded(_reader(args[0]), bounds) if bounds else _reader(args[0])
    if origin in (Union, UnionType):
        readers = [_reader(each) for each in args if each is not NoneType]
        return _one_of(readers, nullable=NoneType in args)
    if origin is Literal:
        return partial(_word, args)
    if origin is tuple:
        return partial(_list, _reader(args[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return partial(_mapping, _reader(args[1]))
    if isinstance(kind, type) and is_dataclass(kind):
        return partial(_message, kind, [(field, _reader(field.kind)) for field in _fields(kind)])
    return _number if kind is float else partial(_scalar, kind)


def _bounded(read: _Reader, bounds: Sequence[Bound]) -> _Reader:
    def bounded(value: Json, key: str) -> object:
        for bound in bounds:
            bound.check(value, key)
        return read(value, key)

    return bounded


def _one_of(readers: Sequence[_Reader], *, nullable: bool) -> _Reader:
    """Return a reader for a union. It tries the types in order and returns the first value that
    fits."""
    *others, last = readers

    def one_of(value: Json, key: str) -> object:
        if value is None and nullable:
            return None
        for read in others:
            with suppress(ControlError):
                return read(value, key)
        return last(value, key)

    return one_of


def _word(words: Sequence[str], value: Json, key: str) -> object:
    if value not in words:
        raise ControlError("bad-request", f"`{key}` is not one of: {', '.join(words)}")
    return value


def _list(read: _Reader, value: Json, key: str) -> object:
    if not isinstance(value, list):
        raise _mistyped(list, value, key)
    return tuple([read(each, key) for each in value])


def _mapping(read: _Reader, value: Json, key: str) -> object:
    return {name: read(each, key) for name, each in object_of(value, key).items()}


def _message(
    kind: "type[DataclassInstance]",
    readers: Sequence[tuple[_Field, _Reader]],
    value: Json,
    key: str,
) -> object:
    given = object_of(value, key)
    return kind(
        **{
            field.name: read(given.get(field.name), field.name)
            for field, read in readers
            if field.required or given.get(field.name) is not None
        }
    )


def _number(value: Json, key: str) -> object:
    if type(value) not in (int, float):
        raise _mistyped(float, value, key)
    return value


def _scalar(kind: object, value: Json, key: str) -> object:
    if type(value) is not kind:
        raise _mistyped(kind, value, key)
    return value


def _mistyped(kind: object, value: object, key: str) -> ControlError:
    got = _NAMES.get(type(value), type(value).__name__)
    return ControlError("bad-request", f"`{key}` is not {_NAMES[kind]}, but {got}")


_NAMES: Final[Mapping[object, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
    NoneType: "null",
}
