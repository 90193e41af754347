"""Downloads the files of a model from a hub with the API of Hugging Face.

The hub is untrusted: the list of files, each name and each size have bounds, every file is verified
by the digest in the list (SHA-256, or the git blob's SHA-1 for small ones), and redirects lead
neither from a public host to a private address nor from https to http. A download that was
interrupted continues where it stopped.
"""

import fcntl
import hashlib
import os
import re
import shutil
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Annotated, Final, NoReturn, TypeVar

from msgspec import Meta

from ...dht.defaults import FILE_LIMIT, INDEX_LIMIT, TOKENIZER_LIMIT
from ...dht.errors import ModelError, unwritable
from ...transport.decoding import read_json
from ...transport.errors import Undecodable
from ...transport.message import Message
from .output import Note, check_disk

LIST_LIMIT: Final = 16 << 20  # bytes of the list of files
FILES: Final = 4096
WEIGHTS_LIMIT: Final = 1 << 42  # bytes of one file of weights
TRIES: Final = 5  # without progress
REDIRECTS: Final = 5
_PIECE: Final = 1 << 18
_TEXTS: Final = {
    "config.json": FILE_LIMIT,
    "generation_config.json": FILE_LIMIT,
    "tokenizer.json": TOKENIZER_LIMIT,
    "tokenizer_config.json": FILE_LIMIT,
    "special_tokens_map.json": FILE_LIMIT,
    "added_tokens.json": FILE_LIMIT,
    "chat_template.jinja": FILE_LIMIT,
    "chat_template.json": FILE_LIMIT,
    "model.safetensors.index.json": INDEX_LIMIT,
}
_WEIGHTS: Final = re.compile(r"model[A-Za-z0-9_.\-]{0,100}\.safetensors")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._\-]{0,95}")


T = TypeVar("T")


class _Large(Message, frozen=True):
    """Digest and size of a file that is stored apart from the repository."""

    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: Annotated[int, Meta(ge=0, le=WEIGHTS_LIMIT)]


class _ListedFile(Message, frozen=True):
    rfilename: Annotated[str, Meta(max_length=1024)]
    size: Annotated[int, Meta(ge=0, le=WEIGHTS_LIMIT)] = 0
    blobId: Annotated[str, Meta(max_length=64)] = ""
    lfs: _Large | None = None


class _Repository(Message, frozen=True):
    sha: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}\Z")]
    siblings: Annotated[tuple[_ListedFile, ...], Meta(max_length=FILES)]


def download_folder(parent: Path, endpoint: str, name: str) -> Path:
    """Return the folder for the files of a model, which stays until the model was imported.

    It belongs to this process until that ends. Raises ModelError `hub-busy` if it belongs to
    another one.
    """
    digest = hashlib.sha256(f"{endpoint}\n{name}".encode()).hexdigest()[:32]
    folder = parent.with_name("downloading") / digest
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _locked(folder):
        raise ModelError(
            "hub-busy",
            f"`{name}` is being downloaded already",
            hint="wait until that command ends",
        )
    return folder


def remove_downloads(parent: Path) -> None:
    """Remove the downloads of this process, and those that others have left unfinished."""
    downloading = parent.with_name("downloading")
    for folder in [each for each in downloading.glob("*") if each.is_dir()]:
        if folder in _own or _locked(folder):
            shutil.rmtree(folder, ignore_errors=True)
            _lock_of(folder).unlink(missing_ok=True)
    with suppress(OSError):  # it has others
        downloading.rmdir()


_own: Final = dict[Path, int]()
"""The folders that this process has locked, with the descriptors of their locks, which it never
closes: it converts one model, and ends."""


def _lock_of(folder: Path) -> Path:
    return folder.with_suffix(".lock")


def _locked(folder: Path) -> bool:
    """Lock a folder for this process. Return whether that was possible."""
    descriptor = os.open(_lock_of(folder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    _own[folder] = descriptor
    return True


class Patience:
    """Times in seconds: `quiet` without a byte, and `window` in which the head of an answer, and
    then each LEAST bytes, must arrive."""

    LEAST: Final = 1 << 16

    def __init__(self, quiet: float = 30.0, window: float = 60.0, pause: float = 1.0) -> None:
        self.quiet, self.window, self.pause = quiet, window, pause


class Hub:
    """One hub. `token` is sent to its own host only."""

    def __init__(self, endpoint: str, token: str = "", patience: Patience | None = None) -> None:
        """Raises ModelError `bad-endpoint` if the endpoint is no http(s) address."""
        parsed = urllib.parse.urlsplit(endpoint)
        if parsed.scheme not in ("http", "https") or not parsed.hostname:
            raise ModelError(
                "bad-endpoint",
                f"{ascii(endpoint)[:80]} is not the address of a hub",
                hint="HF_ENDPOINT has the form https://huggingface.co",
            )
        self._endpoint = endpoint.rstrip("/")
        self._host = parsed.hostname
        self._token = token
        self._patience = patience or Patience()
        follow = Redirects(parsed.scheme, not is_public(parsed.hostname))
        connections = _Connections(self._patience.window)
        self._opener = urllib.request.build_opener(follow, connections)

    def download(self, name: str, folder: Path, note: Note) -> None:
        """Download the files of `org/name` that make a model into a folder.

        Raises ModelError: `bad-name`, `hub-unreachable`, `hub-refused`, `hub-answer`,
        `hub-redirect`, `hub-stalled`, `hub-bytes`, `no-weights`; NotEnoughDisk.
        """
        if not _NAME.fullmatch(name) or ".." in name:
            raise ModelError(
                "bad-name",
                f"{ascii(name)[:80]} is neither a file, a folder nor ORG/NAME of a hub",
                hint="`shoal model add ./folder`, or `shoal model add org/name`",
            )
        repository = self._list(name)
        files = list(_chosen(repository.siblings, name))
        self._check_disk(folder, files)
        total = sum(size for _, size in files_sizes(files))
        done = 0
        for file, size in files_sizes(files):
            before = done
            url = f"{self._endpoint}/{name}/resolve/{repository.sha}/{file.rfilename}"

            def told(count: int, before: int = before) -> None:
                note(before + count, total)

            self._file(url, folder / file.rfilename, file, told)
            done += size

    def _check_disk(self, folder: Path, files: Sequence[_ListedFile]) -> None:
        there = sum(path.stat().st_size for path in folder.iterdir())
        check_disk(folder, sum(size for _, size in files_sizes(files)) - there)

    def _list(self, name: str) -> _Repository:
        url = f"{self._endpoint}/api/models/{name}/revision/main?blobs=true"
        data = self._again(lambda: self._small(url))
        try:
            return read_json(_Repository, data, limit=LIST_LIMIT)
        except Undecodable as error:
            raise ModelError(
                "hub-answer",
                f"the list of files of `{name}` is malformed: {error}",
                hint=f"check that HF_ENDPOINT is a hub: {self._endpoint}",
            ) from None

    def _small(self, url: str) -> bytes:
        with self._open(url, 0) as answer:
            data = b"".join(self._pieces(answer, LIST_LIMIT + 1))
        if len(data) > LIST_LIMIT:
            raise ModelError("hub-answer", "the list of files is too long", hint="name another hub")
        return data

    def _file(self, url: str, path: Path, file: _ListedFile, note: Callable[[int], None]) -> None:
        """Download one file and verify it.

        Skips a file that is complete, and of this revision: an earlier one may have its size.
        """
        size = file.lfs.size if file.lfs else file.size
        part = path.with_name(f"{path.name}.part")
        if _size(path) == size and path.exists() and _is_verified(path, file, size):
            note(size)
            return
        part.touch()
        self._again(lambda: self._continue(url, part, size, note), lambda: _size(part))
        if not _is_verified(part, file, size):
            part.unlink()
            raise ModelError(
                "hub-bytes",
                f"the hub sent other bytes for `{path.name}` than its list says",
                hint="try again later; the bytes were removed",
            )
        os.replace(part, path)

    def _continue(self, url: str, part: Path, size: int, note: Callable[[int], None]) -> None:
        """Download the rest of a file. Raises OSError or HTTPException if the connection breaks."""
        start = _size(part)
        if start >= size:
            if start > size:
                part.unlink()
                raise ConnectionError("the partial file was too long")
            return
        with self._open(url, start) as answer:
            if answer.status != 206:
                start = 0
            elif not (answer.headers["Content-Range"] or "").startswith(f"bytes {start}-"):
                raise ConnectionError("the hub sent another range")
            try:
                file = open(part, "r+b" if start else "wb")  # noqa: SIM115  (closed below)
            except OSError as error:
                raise unwritable(part, error) from None
            with file:
                file.seek(start)
                for piece in self._pieces(answer, size - start):
                    try:
                        file.write(piece)
                        file.flush()
                    except OSError as error:
                        raise unwritable(part, error) from None
                    start += len(piece)
                    note(start)
        if start < size:
            raise ConnectionError("the connection ended early")

    def _pieces(self, answer: HTTPResponse, most: int) -> Iterator[bytes]:
        """Yield at most `most` bytes. Raises TimeoutError if they arrive too slowly."""
        began, arrived = time.monotonic(), 0
        while most > 0 and (piece := answer.read1(min(_PIECE, most))):
            most -= len(piece)
            arrived += len(piece)
            if (now := time.monotonic()) - began > self._patience.window:
                if arrived < Patience.LEAST:
                    raise TimeoutError
                began, arrived = now, 0
            yield piece

    def _open(self, url: str, start: int) -> HTTPResponse:
        """Send a request. Raises ModelError if the hub refuses it."""
        request = urllib.request.Request(url, headers={"User-Agent": "shoal"})
        if start:
            request.add_header("Range", f"bytes={start}-")
        if self._token:  # not sent on to the host of a redirect
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            answer: HTTPResponse = self._opener.open(request, timeout=self._patience.quiet)
        except urllib.error.HTTPError as error:
            status = error.code
            error.close()
            if status >= 500 or status == 429:
                raise ConnectionError(f"status {status}") from None
            raise _refused(url, status) from None
        return answer

    def _again(self, work: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
        """Repeat work whose connection breaks, until TRIES times in a row bring no progress.

        `progress` returns the bytes that are there. Raises ModelError.
        """
        failures, before = 0, progress()
        while True:
            try:
                return work()
            except (OSError, HTTPException) as error:
                now = progress()
                failures = 1 if now > before else failures + 1
                before = now
                if failures >= TRIES:
                    raise self._broken(error) from None
                time.sleep(self._patience.pause * failures)

    def _broken(self, error: OSError | HTTPException) -> ModelError:
        reason = getattr(error, "reason", error)
        if isinstance(error, TimeoutError) or isinstance(reason, TimeoutError):
            return ModelError(
                "hub-stalled",
                f"the hub at {self._host} stopped sending",
                hint="repeat the command: it continues where it stopped",
            )
        words = getattr(reason, "strerror", None) or str(reason)
        return ModelError(
            "hub-unreachable",
            f"the hub at {self._host} cannot be reached: {ascii(words)[1:-1][:200]}",
            hint="check the network, then repeat the command: it continues where it stopped",
        )


class _InTime:
    """Part of a connection: an answer's head must arrive within `seconds`. The timeout of a socket
    counts from byte to byte, so a hub could send a head without end."""

    sock: socket.socket
    seconds = 60.0
    _late = False

    def getresponse(self) -> HTTPResponse:
        """Raises TimeoutError if the head takes longer."""
        watch = threading.Timer(self.seconds, self._end)
        watch.daemon = True
        watch.start()
        try:
            found: HTTPResponse = super().getresponse()  # type: ignore[misc]
        except (OSError, HTTPException):
            if self._late:
                raise TimeoutError from None
            raise
        finally:
            watch.cancel()
        return found

    def _end(self) -> None:
        self._late = True
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class _Http(_InTime, HTTPConnection):
    """An http connection."""


class _Https(_InTime, HTTPSConnection):
    """An https connection."""


class _Connections(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections on which the head of an answer must arrive within `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._http, req)  # type: ignore[arg-type]

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._https, req)  # type: ignore[arg-type]

    def _http(self, host: str, timeout: float) -> HTTPConnection:
        made = _Http(host, timeout=timeout)
        made.seconds = self._seconds
        return made

    def _https(self, host: str, timeout: float) -> HTTPConnection:
        made = _Https(host, timeout=timeout)
        made.seconds = self._seconds
        return made


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects that a hub needs: to https, and from a public host to public hosts."""

    max_redirections = REDIRECTS

    def __init__(self, scheme: str, private: bool) -> None:
        self._scheme, self._private = scheme, private

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the next request. Raises ModelError `hub-redirect` if it may not be sent."""
        try:
            self.check(urllib.parse.urlsplit(newurl))
        except ModelError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def check(self, url: urllib.parse.SplitResult) -> None:
        """Raise ModelError `hub-redirect` if a redirect to this address may not be followed."""
        left = (self._scheme, url.scheme) == ("https", "http")
        if url.scheme not in ("http", "https") or left:
            _bad_redirect(f"to an address of the kind {ascii(url.scheme)[:20]}")
        host = url.hostname or ""
        if not self._private and not is_public(host):
            _bad_redirect(f"to the private address {ascii(host)[:80]}")


def _bad_redirect(where: str) -> NoReturn:
    raise ModelError(
        "hub-redirect",
        f"the hub redirects {where}",
        hint="check HF_ENDPOINT; a hub that does this is broken or hostile",
    )


def is_public(host: str) -> bool:
    """Return whether all addresses of a host are public. An unknown host counts as public."""
    try:
        found = {str(each[4][0]).partition("%")[0] for each in socket.getaddrinfo(host, None)}
    except OSError:
        return True
    return all(ip_address(each).is_global for each in found)


def files_sizes(files: Sequence[_ListedFile]) -> list[tuple[_ListedFile, int]]:
    """Return the files with their sizes in bytes."""
    return [(file, file.lfs.size if file.lfs else file.size) for file in files]


def _chosen(files: Sequence[_ListedFile], name: str) -> Iterator[_ListedFile]:
    """Yield the files that make a model. Raises ModelError if there are none, or one is too
    large."""
    weights = [file for file in files if _WEIGHTS.fullmatch(file.rfilename)]
    if not weights:
        ggufs = [file.rfilename for file in files if file.rfilename.endswith(".gguf")]
        hint = "name a model with safetensors files"
        if ggufs:
            hint = f"download one of its GGUF files, such as {ascii(ggufs[0])[:80]}, and add it"
        raise ModelError("no-weights", f"`{name}` has no safetensors weights", hint=hint)
    for file, size in files_sizes(files):
        limit = _TEXTS.get(file.rfilename)
        if limit is not None and size > limit:
            raise ModelError(
                "too-large", f"`{file.rfilename}` has {size} bytes, the limit is {limit}",
                hint="name another model",
            )  # fmt: skip
        if limit is not None or file in weights:
            yield file


def _is_verified(path: Path, file: _ListedFile, size: int) -> bool:
    """Return whether a file has the digest in the list."""
    hashed = hashlib.sha256() if file.lfs else hashlib.sha1(b"blob %d\0" % size)
    with open(path, "rb") as content:
        while data := content.read(_PIECE):
            hashed.update(data)
    return hashed.hexdigest() == (file.lfs.sha256 if file.lfs else file.blobId)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _refused(url: str, status: int) -> ModelError:
    hints = {
        401: "the model needs an account: set HF_TOKEN to a token of yours",
        403: "accept the model's terms on its page, and set HF_TOKEN to a token of yours",
        404: "check the name: ORG/NAME as on its page; HF_ENDPOINT names another hub",
    }
    return ModelError(
        "hub-refused",
        f"the hub refuses {ascii(url)[:200]}: status {status}",
        hint=hints.get(status, "try again later"),
    )
