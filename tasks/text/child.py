"""Text child: `python -m shoal.tasks.text.child FD`, a process that can do nothing but compute.

A model's files are untrusted: a sandboxed template of 30 characters was seen to take 5.9 s and 2.3
GiB, and the regular expressions of a tokenizer can do the same. Before the first request, the
process therefore limits its memory, gives up files, sockets and its standard error, and makes the
kernel refuse system calls that it never needs (`sandbox.py`). It answers requests in order. If one
takes too long, the daemon kills the process. If the daemon has died, an alarm does.
"""

import array
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import BinaryIO

from ...transport.decoding import typed
from ...transport.message import Message
from ..defaults import TEXT_MEMORY, TEXT_REPLY_BYTES, TEXT_REQUEST_BYTES
from ..errors import TextError
from .frames import (
    ChildReply,
    ChildRequest,
    Decode,
    Decoded,
    DecodedEach,
    DecodeEach,
    Encode,
    EncodeChat,
    Ids,
    LoadFiles,
    TextInfo,
    pack_frame,
    unpack_body,
)
from .sandbox import confine
from .template import ChatTemplate
from .tokens import Tokens

Fields = Mapping[str, object]  # fields of a request
ALARM_GRACE = 1.0  # seconds between the daemon's deadline and the alarm


def limit_process() -> None:
    """Limit the memory and the abilities of this process for its remaining lifetime.

    It may use TEXT_MEMORY bytes of address space. It gets no new descriptors, core dumps or system
    calls that computing does not need.
    """
    silence = os.open(os.devnull, os.O_WRONLY)
    if lacking := confine():
        print(f"note: model text is processed without a sandbox: {lacking}", file=sys.stderr)
    os.dup2(silence, 1)
    os.dup2(silence, 2)  # untrusted files may make a library print to the terminal
    os.close(silence)
    for limit, value in (
        (resource.RLIMIT_AS, TEXT_MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        with suppress(ValueError, OSError):  # macOS has no limit for address space
            resource.setrlimit(limit, (value, value))


def pack_ids(ids: list[int]) -> bytes:
    """Encode token ids as 4-byte integers in native byte order."""
    return array.array("I", ids).tobytes()


def unpack_ids(data: bytes) -> list[int]:
    """Decode token ids from 4-byte integers in native byte order."""
    return array.array("I", data).tolist()


class Server:
    """Request handler of the child. Answers one request at a time."""

    def __init__(self) -> None:
        self._tokens: Tokens | None = None
        self._operations: dict[str, Callable[[Fields], Message]] = {
            "load": self._load,
            "encode": self._encode,
            "encode_chat": self._encode_chat,
            "decode": self._decode,
            "decode_each": self._decode_each,
        }

    def answer(self, fields: Fields) -> bytes:
        """Execute a request and return the frame with the reply. Failures are replies too."""
        request = typed(ChildRequest, fields)
        number = request.id
        try:
            reply = self._operations[request.op](fields)
            return pack_frame({"id": number, **reply.fields()}, limit=TEXT_REPLY_BYTES)
        except TextError as error:
            return _refusal(number, error.code, error.message)
        except MemoryError:
            return _refusal(number, "text-memory", "out of memory")
        except Exception as error:  # noqa: BLE001  (the only place: libraries process untrusted input)
            return _refusal(number, "text-failed", f"{type(error).__name__}: {error}")

    @property
    def tokens(self) -> Tokens:
        """The loaded tokenizer. Raises TextError `text-protocol` if none is loaded."""
        if self._tokens is None:
            raise TextError("text-protocol", "no tokenizer is loaded")
        return self._tokens

    def _load(self, fields: Fields) -> TextInfo:
        self._tokens = Tokens(typed(LoadFiles, fields).files)
        return self._tokens.info

    def _encode(self, fields: Fields) -> Ids:
        request = typed(Encode, fields)
        ids = self.tokens.encode(request.text, add_special=request.add_special)
        return Ids(pack_ids(ids))

    def _encode_chat(self, fields: Fields) -> Ids:
        request = typed(EncodeChat, fields)
        ids = self.tokens.encode_chat(
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            now=request.now,
        )
        return Ids(pack_ids(ids))

    def _decode(self, fields: Fields) -> Decoded:
        request = typed(Decode, fields)
        ids = unpack_ids(request.ids)
        window = self.tokens.decode(ids)
        fresh = self.tokens.decode(ids[request.cut :]) if request.cut else window
        return Decoded(window, fresh)

    def _decode_each(self, fields: Fields) -> DecodedEach:
        request = typed(DecodeEach, fields)
        ids = unpack_ids(request.ids)
        decoded = [
            (self.tokens.decode([*ids, last]), self.tokens.decode([*ids[request.cut :], last]))
            for last in unpack_ids(request.last)
        ]
        return DecodedEach(tuple(each for each, _ in decoded), tuple(each for _, each in decoded))


def _refusal(number: int, code: str, message: str) -> bytes:
    """Return the frame that reports a failed request."""
    printable = "".join(c if c.isprintable() else " " for c in message[:300])
    return pack_frame(ChildReply(number, code, printable).fields())


def serve(stream: BinaryIO, send: Callable[[bytes], None]) -> None:
    """Answer requests until the daemon closes the socket."""
    server = Server()
    while len(size := stream.read(4)) == 4:
        length = int.from_bytes(size)
        if length > TEXT_REQUEST_BYTES:
            return
        request = unpack_body(stream.read(length))
        signal.setitimer(signal.ITIMER_REAL, typed(ChildRequest, request).seconds + ALARM_GRACE)
        answer = server.answer(request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(answer)


def warm_up() -> None:
    """Trigger the late imports of the libraries, because no file can be opened later."""
    for source in (r"{{ ['é\n'] | tojson }}{{ strftime_now('%c') }}", "{{ raise_exception('x') }}"):
        with suppress(TextError):
            ChatTemplate(source, {}).render([], add_generation_prompt=True, now=0)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setblocking(True)
    warm_up()
    limit_process()
    with suppress(ConnectionError):  # the daemon has ended
        serve(connection.makefile("rb"), connection.sendall)


if __name__ == "__main__":
    main()
