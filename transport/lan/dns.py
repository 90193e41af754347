"""Encoding and decoding of DNS messages (RFC 1035) for multicast DNS.

Sizes, counts and lengths of names are checked before the data is read. A pointer in a name must
lead backwards, so that pointers cannot form a loop.
"""

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from ipaddress import IPv4Address
from typing import Final

from .defaults import LABEL_BYTES, LABELS, MESSAGE_BYTES, NAME_BYTES, QUESTIONS, RECORDS, TEXT_BYTES

Name = tuple[bytes, ...]
"""Labels of a name. Received labels are converted to lower case, because names are compared without
regard to case (RFC 6762, section 16)."""

_HEAD: Final = struct.Struct("!HHHHHH")  # id, flags, questions, answers, authorities, additional
_QUESTION: Final = struct.Struct("!HH")  # type, class
_RECORD: Final = struct.Struct("!HHIH")  # type, class, TTL, length
_SERVICE: Final = struct.Struct("!HHH")  # priority, weight, port
_RESPONSE: Final = 0x8400  # flags of our responses: QR and AA
_QR: Final = 0x8000  # flag of a response
_OPCODE_RCODE: Final = 0x780F  # bits that must be 0 in multicast DNS
# Highest bit of the class field: cache-flush in a record, a request for unicast in a question.
_FLUSH: Final = 0x8000
_POINTER: Final = 0xC0  # a length from this on is a pointer
_INTERNET: Final = 1


class Type(IntEnum):
    """Record types that are decoded. Records of other types are skipped. `ANY` occurs only in
    questions."""

    A = 1
    PTR = 12
    TXT = 16
    SRV = 33
    ANY = 255


@dataclass(frozen=True, slots=True)
class DnsQuestion:
    """A question for the records of a name. `type` is a number, which may be unknown to `Type`."""

    name: Name
    type: int


@dataclass(frozen=True, slots=True)
class SrvData:
    """Data of an SRV record: the port of a service and the name of its host."""

    port: int
    host: Name


Data = Name | SrvData | IPv4Address | tuple[bytes, ...]
"""Data of a record of type PTR, SRV, A and TXT, in this order."""


@dataclass(frozen=True, slots=True)
class DnsRecord:
    """A resource record. `ttl` is in seconds. `shared` is True if other hosts may have records with
    the same name and type (PTR records)."""

    name: Name
    type: Type
    data: Data
    ttl: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class DnsMessage:
    """A query or a response. A query has questions, and in `records` the answers that the querier
    already knows. A response has only records."""

    response: bool
    questions: list[DnsQuestion] = field(default_factory=list)
    records: list[DnsRecord] = field(default_factory=list)


# Encoding. Names are not compressed, because ours are short.


def encode(message: DnsMessage) -> bytes:
    """Return the encoded message."""
    flags = _RESPONSE if message.response else 0
    head = _HEAD.pack(0, flags, len(message.questions), len(message.records), 0, 0)
    questions = [
        _name(each.name) + _QUESTION.pack(each.type, _INTERNET) for each in message.questions
    ]
    return b"".join([head, *questions, *map(_record, message.records)])


def _record(record: DnsRecord) -> bytes:
    data = _data(record)
    unique = _FLUSH if not record.shared else 0
    head = _RECORD.pack(record.type, _INTERNET | unique, record.ttl, len(data))
    return _name(record.name) + head + data


def _data(record: DnsRecord) -> bytes:
    data = record.data
    if isinstance(data, SrvData):
        return _SERVICE.pack(0, 0, data.port) + _name(data.host)
    if isinstance(data, IPv4Address):
        return data.packed
    if record.type is Type.PTR:
        return _name(data)
    return b"".join(bytes((len(text),)) + text for text in data)


def _name(name: Name) -> bytes:
    return b"".join(bytes((len(label),)) + label for label in name) + b"\0"


# Decoding.


class _Malformed(Exception):
    """Raised if a message is malformed or exceeds a limit."""


def decode(data: bytes) -> DnsMessage | None:
    """Return the decoded message, or None if the data is malformed or exceeds a limit.

    Questions of other classes, and records of other types and classes, are skipped.
    """
    if not _HEAD.size <= len(data) <= MESSAGE_BYTES:
        return None
    _, flags, questions, *counts = _HEAD.unpack_from(data)
    if flags & _OPCODE_RCODE or questions > QUESTIONS or sum(counts) > RECORDS:
        return None
    message = DnsMessage(bool(flags & _QR))
    reader = _MessageReader(data)
    try:
        for _ in range(questions):
            reader.question(message)
        for _ in range(sum(counts)):
            reader.record(message)
    except (_Malformed, struct.error):
        return None
    return message


class _MessageReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = _HEAD.size
        self._labels = 0

    def question(self, message: DnsMessage) -> None:
        name = self._name()
        kind, group = _QUESTION.unpack_from(self._data, self._at)
        self._at += _QUESTION.size
        if group & ~_FLUSH in (_INTERNET, Type.ANY):
            message.questions.append(DnsQuestion(name, kind))

    def record(self, message: DnsMessage) -> None:
        name = self._name()
        kind, group, ttl, length = _RECORD.unpack_from(self._data, self._at)
        self._at += _RECORD.size
        end = self._at + length
        if end > len(self._data):
            raise _Malformed
        if group & ~_FLUSH == _INTERNET:
            found = self._read(kind, end)
            if found is not None:
                shared = not group & _FLUSH
                message.records.append(DnsRecord(name, Type(kind), found, ttl, shared))
        self._at = end

    def _read(self, kind: int, end: int) -> Data | None:
        """Return a record's decoded data, or None for a type that is skipped."""
        if kind == Type.A:
            if end - self._at != 4:
                raise _Malformed
            return IPv4Address(self._data[self._at : end])
        if kind == Type.PTR:
            return self._name_until(end)
        if kind == Type.SRV:
            port = int(_SERVICE.unpack_from(self._data, self._at)[2])
            self._at += _SERVICE.size
            return SrvData(port, self._name_until(end))
        return self._texts(end) if kind == Type.TXT else None

    def _texts(self, end: int) -> tuple[bytes, ...]:
        if end - self._at > TEXT_BYTES:
            raise _Malformed
        found = []
        while self._at < end:
            start = self._at + 1
            self._at = start + self._data[self._at]
            if self._at > end:
                raise _Malformed
            found.append(self._data[start : self._at])
        return tuple(found)

    def _name_until(self, end: int) -> Name:
        name = self._name()
        if self._at != end:
            raise _Malformed
        return name

    def _name(self) -> Name:
        # Each pointer must lead further back than the previous one, which excludes loops.
        data, at, back = self._data, self._at, self._at
        labels: list[bytes] = []
        size, after = 0, -1
        while True:
            if at >= len(data):
                raise _Malformed
            length = data[at]
            if length >= _POINTER:
                if at + 1 >= len(data):
                    raise _Malformed
                target = (length & ~_POINTER) << 8 | data[at + 1]
                if target >= back or target < _HEAD.size:
                    raise _Malformed
                after = at + 2 if after < 0 else after
                at = back = target
                continue
            at += 1
            if not length:
                break
            size += length + 1
            if length > LABEL_BYTES or size >= NAME_BYTES or at + length > len(data):
                raise _Malformed
            self._labels += 1
            if self._labels > LABELS:
                raise _Malformed
            labels.append(data[at : at + length].lower())
            at += length
        self._at = at if after < 0 else after
        return tuple(labels)
