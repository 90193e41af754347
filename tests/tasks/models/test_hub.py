"""Downloads from a hub on this machine, which also stalls, redirects elsewhere and lies."""

import hashlib
import json
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shoal.dht.errors import ModelError
from shoal.node.daemon.embedded import embedded_folder
from shoal.tasks.models import hub
from shoal.tasks.models.hub import Hub, Patience

NAMES = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
SHA = "1234567890" * 4
Behaviour = Callable[["Handler", str, bytes], bool]


def ignored(_done: int, _total: int) -> None:
    pass


class Handler(BaseHTTPRequestHandler):
    """Serves the embedded model as org/tiny. `behave` may answer a file request differently."""

    protocol_version = "HTTP/1.0"
    server: "Server"

    def do_GET(self) -> None:
        self.server.seen.append((self.path, dict(self.headers)))
        name = self.path.rpartition("/")[2]
        if self.path.startswith("/api/"):
            self.send(self.server.listing())
        elif name in self.server.files:
            content = self.server.files[name]
            if not (self.server.behave and self.server.behave(self, name, content)):
                self.ranged(content)
        else:
            self.send_error(404)

    def ranged(self, content: bytes) -> None:
        told = self.headers.get("Range")
        if told is None or not self.server.ranges:
            self.send(content)
            return
        start = int(told.removeprefix("bytes=").rstrip("-"))
        where = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.send(content[start:], status=206, headers={"Content-Range": where})

    def send(
        self, content: bytes, *, status: int = 200, headers: dict[str, str] | None = None,
        length: int | None = None,
    ) -> None:  # fmt: skip
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A hub on the loopback address."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {name: (embedded_folder() / name).read_bytes() for name in NAMES}
        self.files["pytorch_model.bin"] = b"a pickle"
        self.behave: Behaviour | None = None
        self.ranges = True
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.change: Callable[[dict[str, Any]], None] = lambda listed: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def listing(self) -> bytes:
        siblings = []
        for name, content in self.files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob}
            if name.endswith(".safetensors"):
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 132}
            siblings.append(entry)
        listed = {"id": "org/tiny", "sha": SHA, "siblings": siblings}
        self.change(listed)
        return json.dumps(listed).encode()

    def requested(self, name: str) -> list[dict[str, str]]:
        return [headers for path, headers in self.seen if path.endswith(f"/{name}")]


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "downloaded"
    made.mkdir()
    return made


def download(server: Server, folder: Path, *, quiet: float = 5.0, window: float = 60.0) -> None:
    patience = Patience(quiet, window, 0.01)
    Hub(server.url, "a-token", patience).download("org/tiny", folder, ignored)


def refused(server: Server, folder: Path, **patience: float) -> str:
    with pytest.raises(ModelError) as failure:
        download(server, folder, **patience)
    assert failure.value.hint
    return failure.value.code


WEIGHTS = "model.safetensors"


def test_the_files_of_a_model_are_downloaded(server: Server, folder: Path) -> None:
    download(server, folder)
    assert {path.name for path in folder.iterdir()} == set(NAMES)
    assert all((folder / name).read_bytes() == server.files[name] for name in NAMES)
    assert all(path.startswith(("/api/models/org/tiny/", f"/org/tiny/resolve/{SHA}/"))
               for path, _ in server.seen)  # fmt: skip
    assert all(headers["Authorization"] == "Bearer a-token" for _, headers in server.seen)
    before = len(server.seen)
    download(server, folder)
    assert len(server.seen) == before + 1  # only the list


def cut_after(count: int, times: int) -> Behaviour:
    """Close the connection after `count` bytes, the first `times` times."""
    left = [times]

    def behave(handler: Handler, name: str, content: bytes) -> bool:
        if name != WEIGHTS or not left[0]:
            return False
        left[0] -= 1
        start = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        where = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        rest = content[start:]
        handler.send(rest[:count], status=206 if start else 200, headers=where, length=len(rest))
        return True

    return behave


def test_a_broken_download_continues(server: Server, folder: Path) -> None:
    server.behave = cut_after(1 << 20, 4)
    download(server, folder)
    starts = [headers.get("Range") for headers in server.requested(WEIGHTS)]
    assert starts == [None, *(f"bytes={number << 20}-" for number in range(1, 5))]


def test_a_later_command_continues(server: Server, folder: Path) -> None:
    (folder / f"{WEIGHTS}.part").write_bytes(server.files[WEIGHTS][: 3 << 20])
    download(server, folder)
    (request,) = server.requested(WEIGHTS)
    assert request["Range"] == f"bytes={3 << 20}-"
    assert (folder / WEIGHTS).read_bytes() == server.files[WEIGHTS]


def test_a_hub_without_ranges_starts_again(server: Server, folder: Path) -> None:
    server.ranges = False
    (folder / f"{WEIGHTS}.part").write_bytes(b"x" * 1000)
    download(server, folder)
    assert (folder / WEIGHTS).read_bytes() == server.files[WEIGHTS]


def test_a_wrong_range_is_not_joined(server: Server, folder: Path) -> None:
    def behave(handler: Handler, name: str, content: bytes) -> bool:
        if name != WEIGHTS:
            return False
        handler.send(content, status=206, headers={"Content-Range": "bytes 7-9/10"})
        return True

    server.behave = behave
    (folder / f"{WEIGHTS}.part").write_bytes(server.files[WEIGHTS][:1000])
    assert refused(server, folder) == "hub-unreachable"
    assert (folder / f"{WEIGHTS}.part").stat().st_size == 1000


def test_a_hub_that_is_silent_is_given_up(server: Server, folder: Path) -> None:
    def behave(handler: Handler, name: str, content: bytes) -> bool:
        if name == WEIGHTS:
            time.sleep(0.5)
        return False

    server.behave = behave
    assert refused(server, folder, quiet=0.05) == "hub-stalled"
    assert not (folder / WEIGHTS).exists()


def test_a_hub_that_trickles_is_given_up(server: Server, folder: Path) -> None:
    def behave(handler: Handler, name: str, content: bytes) -> bool:
        if name != WEIGHTS:
            return False
        handler.send(b"", length=len(content))
        for at in range(200):
            handler.wfile.write(content[at : at + 1])
            time.sleep(0.01)
        return True

    server.behave = behave
    began = time.monotonic()
    with pytest.raises(ModelError) as failure:
        download(server, folder, window=0.1)
    assert failure.value.code in ("hub-stalled", "hub-unreachable")
    assert time.monotonic() - began < 10


def test_a_hub_whose_heads_never_end_is_given_up(server: Server, folder: Path) -> None:
    def behave(handler: Handler, name: str, content: bytes) -> bool:
        if name != WEIGHTS:
            return False
        with suppress(OSError):
            for _ in range(400):
                handler.wfile.write(b"X")
                time.sleep(0.01)
        return True

    server.behave = behave
    began = time.monotonic()
    assert refused(server, folder, window=0.1) == "hub-stalled"
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_other_bytes_are_refused_and_removed(name: str, server: Server, folder: Path) -> None:
    def behave(handler: Handler, asked: str, content: bytes) -> bool:
        if asked != name:
            return False
        handler.send(content[:-1] + bytes([content[-1] ^ 1]))
        return True

    server.behave = behave
    assert refused(server, folder) == "hub-bytes"
    assert not list(folder.glob(f"{name}*"))


def test_more_bytes_than_told_are_not_stored(server: Server, folder: Path) -> None:
    def behave(handler: Handler, name: str, content: bytes) -> bool:
        if name != WEIGHTS:
            return False
        handler.send(content + b"x" * (1 << 20))
        return True

    server.behave = behave
    download(server, folder)
    assert (folder / WEIGHTS).read_bytes() == server.files[WEIGHTS]


def redirect_to(url: str) -> Behaviour:
    def behave(handler: Handler, name: str, content: bytes) -> bool:
        if name != WEIGHTS:
            return False
        handler.send(b"", status=302, headers={"Location": url})
        return True

    return behave


def test_a_redirect_to_another_host_carries_no_token(server: Server, folder: Path) -> None:
    other = Server()
    thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.behave = redirect_to(f"{other.url}/far/{WEIGHTS}")
    try:
        download(server, folder)
    finally:
        other.shutdown()
        thread.join()
        other.server_close()
    assert (folder / WEIGHTS).read_bytes() == server.files[WEIGHTS]
    ((_, headers),) = other.seen
    assert "Authorization" not in headers


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://x/y"])
def test_a_redirect_to_another_kind_of_address_is_refused(
    url: str, server: Server, folder: Path
) -> None:
    server.behave = redirect_to(url)
    assert refused(server, folder) in ("hub-redirect", "hub-refused")
    assert not (folder / WEIGHTS).exists()


def test_a_public_hub_may_not_redirect_to_this_machine(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "is_public", lambda host: host != "localhost")
    server.behave = redirect_to(f"http://localhost:{server.server_address[1]}/x/{WEIGHTS}")
    assert refused(server, folder) == "hub-redirect"
    assert len(server.requested(WEIGHTS)) == 1


def test_which_addresses_are_public() -> None:
    assert not any(map(hub.is_public, ("127.0.0.1", "localhost", "10.1.2.3", "::1",
                                        "169.254.169.254", "192.168.0.1")))  # fmt: skip
    assert hub.is_public("8.8.8.8")


def test_https_is_not_left() -> None:
    handler = hub.Redirects("https", private=False)
    with pytest.raises(ModelError, match="kind 'http'"):
        handler.check(urllib.parse.urlsplit("http://8.8.8.8/x"))
    handler.check(urllib.parse.urlsplit("https://8.8.8.8/x"))


def test_redirects_without_end_are_given_up(server: Server, folder: Path) -> None:
    server.behave = redirect_to(f"{server.url}/x/{WEIGHTS}")
    assert refused(server, folder) in ("hub-refused", "hub-unreachable")


LISTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "no commit": lambda listed: listed.pop("sha"),
    "a path as commit": lambda listed: listed.update(sha="../../../x"),
    "no files": lambda listed: listed.pop("siblings"),
    "negative size": lambda listed: listed["siblings"][3]["lfs"].update(size=-1),
    "huge size": lambda listed: listed["siblings"][3]["lfs"].update(size=1 << 60),
    "no digest": lambda listed: listed["siblings"][3]["lfs"].update(sha256="x"),
    "too many files": lambda listed: listed.update(siblings=listed["siblings"] * 1000),
}


@pytest.mark.parametrize("lie", list(LISTS))
def test_a_malformed_list_is_refused(lie: str, server: Server, folder: Path) -> None:
    server.change = LISTS[lie]
    assert refused(server, folder) == "hub-answer"
    assert not list(folder.iterdir())


def test_files_in_other_folders_are_not_downloaded(server: Server, folder: Path) -> None:
    server.change = lambda listed: listed["siblings"].append(
        {"rfilename": "../../model-evil.safetensors", "size": 3, "blobId": ""}
    )
    download(server, folder)
    assert {path.name for path in folder.iterdir()} == set(NAMES)
    assert not list(folder.parent.parent.glob("*evil*"))


def test_a_large_text_is_refused(server: Server, folder: Path) -> None:
    server.change = lambda listed: listed["siblings"][0].update(size=5 << 20)
    assert refused(server, folder) == "too-large"


def test_a_model_that_does_not_fit_the_disk_is_not_begun(server: Server, folder: Path) -> None:
    server.change = lambda listed: listed["siblings"][3]["lfs"].update(size=1 << 41)
    assert refused(server, folder) == "disk-full"
    assert not server.requested("config.json")


def test_a_file_of_an_earlier_revision_is_replaced(server: Server, folder: Path) -> None:
    """A revision that was trained further has other weights of the same size."""
    download(server, folder)
    later = bytes(reversed(server.files["model.safetensors"]))
    server.files["model.safetensors"] = later
    download(server, folder)
    assert (folder / "model.safetensors").read_bytes() == later
    assert len(server.requested("config.json")) == 1


DOWNLOADS = """
import sys, time
from pathlib import Path
from shoal.dht.errors import ModelError
from shoal.tasks.models.hub import download_folder
try:
    print(download_folder(Path(sys.argv[1]) / "converting", "http://hub", "a/b"), flush=True)
except ModelError as error:
    print(error.code, flush=True)
sys.stdin.read()
"""


def test_a_download_that_runs_is_left_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DOWNLOADS, str(tmp_path)]

    def started() -> tuple[subprocess.Popen[str], str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    running, there = started()
    other, code = started()
    assert code == "hub-busy"
    other.communicate()
    hub.remove_downloads(tmp_path / "converting")
    assert Path(there).is_dir()
    running.communicate()
    hub.remove_downloads(tmp_path / "converting")
    assert not (tmp_path / "downloading").exists()


def test_what_is_missing_is_named(server: Server, folder: Path) -> None:
    server.change = lambda listed: listed["siblings"].pop(3)
    assert refused(server, folder) == "no-weights"
    with pytest.raises(ModelError) as failure:
        Hub(server.url, "", Patience(5, 5, 0.01)).download("org/../x", folder, ignored)
    assert failure.value.code == "bad-name"
    with pytest.raises(ModelError) as failure:
        Hub("ftp://hub")
    assert failure.value.code == "bad-endpoint"


@pytest.mark.parametrize(("status", "word"), [(401, "HF_TOKEN"), (403, "terms"), (404, "name")])
def test_a_refusal_says_what_to_do(status: int, word: str, server: Server, folder: Path) -> None:
    def behave(handler: Handler, name: str, content: bytes) -> bool:
        handler.send_error(status)
        return True

    server.behave = behave
    with pytest.raises(ModelError) as failure:
        download(server, folder)
    assert failure.value.code == "hub-refused" and word in str(failure.value.hint)


def test_an_unreachable_hub_is_given_up(server: Server, folder: Path) -> None:
    with pytest.raises(ModelError) as failure:
        Hub("http://127.0.0.1:1", "", Patience(1, 1, 0.01)).download("a/b", folder, ignored)
    assert failure.value.code == "hub-unreachable"
