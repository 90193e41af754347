"""Headless Chromium through chromedriver (W3C WebDriver over HTTP), on loopback."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

LOOPBACK = "127.0.0.1"
DRIVER = shutil.which("chromedriver")
BINARY = next(
    (found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None
)

needs_chromium = pytest.mark.skipif(
    DRIVER is None or BINARY is None,
    reason="no chromium and chromedriver here (Debian: `apt-get install chromium chromium-driver`)",
)

_FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


class Chromium:
    """One browser with one page."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._session = ""
        self._pid = 0

    async def start(self, profile: Path) -> None:
        options = {"binary": BINARY, "args": [*_FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        value = await self._ask("POST", "/session", wanted)
        self._session = f"/session/{value['sessionId']}"
        self._pid = int(value["capabilities"]["goog:processID"])
        await self._ask("POST", f"{self._session}/timeouts", {"script": 30000})

    async def stop(self) -> None:
        if self._session:
            await self._ask("DELETE", self._session)

    async def kill(self) -> None:
        """End the browser's processes at once (by the id that chromedriver tells)."""
        os.kill(self._pid, signal.SIGKILL)

    async def open(self, url: str) -> None:
        await self._ask("POST", f"{self._session}/url", {"url": url})

    async def run(self, script: str, *args: object) -> Any:
        """What an async function with this body returns."""
        wrapped = (
            "const done = arguments[arguments.length - 1];"
            f"(async (...args) => {{ {script} }})(...arguments)"
            ".then((value) => done([value, null]), (error) => done([null, String(error)]));"
        )
        found = await self._ask(
            "POST", f"{self._session}/execute/async", {"script": wrapped, "args": list(args)}
        )
        value, error = found
        assert error is None, error
        return value

    async def text(self, ident: str) -> str:
        return str(await self.run("return document.getElementById(args[0]).textContent", ident))

    async def _ask(self, method: str, path: str, document: object = None) -> Any:
        body = json.dumps(document).encode() if document is not None else b""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        stream = await trio.open_tcp_stream(LOOPBACK, self._port)
        async with stream:
            await stream.send_all(head.encode() + body)
            data = b""
            while piece := await stream.receive_some(65536):
                data += piece
                header, _, rest = data.partition(b"\r\n\r\n")
                size = [
                    int(line[15:])
                    for line in header.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                ]
                if size and len(rest) >= size[0]:
                    break
        value = json.loads(rest)["value"]
        assert not (isinstance(value, dict) and "error" in value), value
        return value


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Chromium]:
    """A browser with an empty profile, until the end of the block."""
    assert DRIVER is not None
    process = await trio.lowlevel.open_process(
        [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        browser = Chromium(await _port_of(process))
        try:
            with trio.fail_after(60):
                await browser.start(profile)
            yield browser
        finally:
            with trio.move_on_after(10, shield=True):
                await browser.stop()
    finally:
        process.terminate()
        with trio.CancelScope(shield=True):
            await process.wait()
        if process.stdout is not None:
            await process.stdout.aclose()


async def _port_of(process: trio.Process) -> int:
    assert process.stdout is not None
    said = b""
    with trio.fail_after(20):
        while (found := re.search(rb"started successfully on port (\d+)", said)) is None:
            piece = await process.stdout.receive_some(4096)
            assert piece, said
            said += piece
    return int(found[1])
