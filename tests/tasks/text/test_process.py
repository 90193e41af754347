"""The text child, as a real process: what it answers, what it survives, what it refuses."""

import json
import math
import os
import platform
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from tokenizers import Tokenizer

from shoal.tasks.errors import TextError
from shoal.tasks.text import process as process_module
from shoal.tasks.text.frames import pack_frame
from shoal.tasks.text.process import (
    CHILD,
    ENVIRONMENT,
    ChatTurn,
    ModelFiles,
    TextDelta,
    TextProcess,
)
from shoal.transport.host.real import RealChild, RealHost

Files = Callable[..., ModelFiles]
USER = (ChatTurn("user", "Hi"),)


class WatchedHost(RealHost):
    """Remembers the children it started."""

    def __init__(self) -> None:
        super().__init__()
        self.children: list[RealChild] = []

    async def spawn(self, module: str, args: object, env: object) -> RealChild:
        child = await super().spawn(module, args, env)  # type: ignore[arg-type]
        self.children.append(child)
        return child


@asynccontextmanager
async def running(files: ModelFiles, host: RealHost | None = None) -> AsyncIterator[TextProcess]:
    text = TextProcess(host or RealHost(), files)
    async with trio.open_nursery() as nursery:
        await nursery.start(text.run)
        yield text
        nursery.cancel_scope.cancel()


async def code_of(text: TextProcess, messages: tuple[ChatTurn, ...] = USER) -> str:
    with pytest.raises(TextError) as caught:
        await text.encode_chat(messages)
    return caught.value.code


@pytest.mark.trio
async def test_text_becomes_tokens_and_tokens_text(
    files: Files, bytes_tokenizer: Tokenizer
) -> None:
    async with running(files()) as text:
        prompt = "In the beginning 🙂"
        ids = await text.encode(prompt)
        assert ids == bytes_tokenizer.encode(prompt).ids
        assert ids[0] == text.info.bos == 0
        assert await text.encode(prompt, add_special=False) == ids[1:]
        detokenizer = await text.detokenizer()
        deltas = [await detokenizer.push(token) for token in ids]
        assert "".join(delta.text for delta in deltas) + await detokenizer.finish() == prompt
        assert await (await text.detokenizer(["nni"])).push(*ids) == TextDelta(
            "In the begi", stopped=True
        )


@pytest.mark.trio
async def test_a_conversation_goes_through_the_template(
    files: Files, bytes_tokenizer: Tokenizer
) -> None:
    expected = "<s><|user|>Hi</s><|assistant|>Yes.</s><|user|>And?</s><|assistant|>"
    turns = (*USER, ChatTurn("assistant", "Yes."), ChatTurn("user", "And?"))
    async with running(files()) as text:
        ids = await text.encode_chat(turns)
        assert ids == bytes_tokenizer.encode(expected, add_special_tokens=False).ids
        assert await text.encode_chat(turns, add_generation_prompt=False) == ids[:-1]
        assert text.info.chat


@pytest.mark.trio
async def test_many_requests_at_once_are_matched(files: Files) -> None:
    async with running(files()) as text:
        found: dict[int, list[int]] = {}

        async def ask(number: int) -> None:
            found[number] = await text.encode(f"word {number}")

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, number)
        for number, ids in found.items():
            assert await (await text.detokenizer()).push(*ids) == TextDelta(f"word {number}", False)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("template", "code"),
    [
        ("{% for a in range(10**9) %}x{% endfor %}", "template-failed"),
        ("{{ 'x' * 10**9 }}", "template-limit"),
        ("{{ 'x' * (messages|length * 2 * 10**9) }}", "template-limit"),
        ("{% set x = 'x' * (messages|length * 10**6) %}{{ x }}{{ x }}", "template-limit"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "template-failed"),
        ("{{ raise_exception('roles must alternate') }}", "template-failed"),
        ("{% if %}", "template-failed"),
        ("{{ messages.append(1) }}", "template-failed"),
        ("{{ '%0999999999d' % (messages|length * 2) }}", "template-limit"),
        ("{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}", "template-failed"),
    ],
)
async def test_a_hostile_template_gets_a_code_and_the_tokenizer_goes_on(
    files: Files, template: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "TEXT_TIMEOUT", 0.8)
    async with running(files(chat_template=template.encode())) as text:
        assert await code_of(text) == code
        assert await text.encode("still here")


@pytest.mark.trio
async def test_a_template_that_takes_too_long_is_killed(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "TEXT_TIMEOUT", 0.3)
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    async with running(files(chat_template=endless.encode())) as text:
        found: list[list[int]] = []

        async def ask() -> None:
            found.append(await text.encode("behind it in the queue"))

        async with trio.open_nursery() as nursery:
            with pytest.raises(TextError) as caught:
                nursery.start_soon(ask)
                await text.encode_chat(USER)
        assert caught.value.code == "template-limit"
        assert caught.value.message == "the chat template of `tiny` took over 0.3 s"
        assert caught.value.hint == "try `--raw`"
        assert found == [await text.encode("behind it in the queue")]


@pytest.mark.trio
async def test_without_a_template_only_plain_text_works(files: Files) -> None:
    async with running(files(chat_template=None)) as text:
        assert not text.info.chat
        with pytest.raises(TextError) as caught:
            await text.encode_chat(USER)
        assert (caught.value.code, caught.value.hint) == ("no-template", "try `--raw`")


@pytest.mark.trio
async def test_a_killed_child_costs_one_request(files: Files) -> None:
    host = WatchedHost()
    async with running(files(), host) as text:
        detokenizer = await text.detokenizer()
        ids = await text.encode("one two", add_special=False)
        first = await detokenizer.push(*ids[:3])
        child = host.children[-1]
        os.kill(child.pid, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(os_kill_soon, child.pid)
            with pytest.raises(TextError) as caught:
                await text.encode("lost")
        assert caught.value.code == "text-crashed"
        rest = await detokenizer.push(*ids[3:])  # keeps nothing in the child
        assert first.text + rest.text + await detokenizer.finish() == "one two"
        assert len(host.children) == 2


async def os_kill_soon(pid: int) -> None:
    for _ in range(5):
        await trio.lowlevel.checkpoint()
    os.kill(pid, signal.SIGKILL)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("tokenizer", b"[" * 100_000),
        ("tokenizer", b"{}"),
        ("tokenizer", b"\xff"),
        ("tokenizer_config", b"[" * 1_000_000),
        ("tokenizer_config", b"[1]"),
        ("generation_config", b"{"),
    ],
)
async def test_hostile_files_are_refused(files: Files, name: str, data: bytes) -> None:
    with pytest.raises(TextError) as caught:
        await TextProcess(RealHost(), files(**{name: data})).run()
    assert caught.value.code == "bad-tokenizer"
    assert "`tiny`" in caught.value.message


@pytest.mark.trio
async def test_stop_ids_are_the_union_of_the_files(files: Files) -> None:
    generation = json.dumps({"eos_token_id": [3, 300, True, -1, "2"]}).encode()
    configured = {"eos_token": "</s>", "additional_special_tokens": ["<|user|>", "<|im_end|>"]}
    hostile = files(
        config={"eos_token_id": [2, 10**30, None], "bos_token_id": "0"},
        tokenizer_config=json.dumps(configured).encode(),
        generation_config=generation,
    )
    async with running(hostile) as text:
        assert text.info.stop_ids == (1, 2, 3, 300)
        assert text.info.eos == 1


@pytest.mark.trio
async def test_the_template_may_be_in_the_tokenizer_config(files: Files) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ 1 }}"}]
    configured = json.dumps({"chat_template": named}).encode()
    async with running(files(chat_template=None, tokenizer_config=configured)) as text:
        assert await text.encode_chat(USER) == await text.encode("1", add_special=False)


@pytest.mark.trio
async def test_texts_and_files_are_bounded(files: Files) -> None:
    with pytest.raises(TextError):
        TextProcess(RealHost(), files(tokenizer_config=b" " * (4 * 2**20 + 1)))
    async with running(files()) as text:
        for bad in ("x" * (2**20 + 1), "\ud800"):
            with pytest.raises(TextError):
                await text.encode(bad)
        with pytest.raises(TextError):
            await (await text.detokenizer()).push(2**32)
        with pytest.raises(TextError):
            await text.encode_chat(USER * 1025)


def limits_of(pid: int) -> str:
    return Path(f"/proc/{pid}/limits").read_text()


@pytest.mark.trio
async def test_the_child_can_open_nothing(files: Files) -> None:
    host = WatchedHost()
    async with running(files(), host):
        limits = limits_of(host.children[0].pid)
        wanted = {
            "Max open files": "0",
            "Max file size": "0",
            "Max core file size": "0",
            "Max address space": str(2**30),
        }
        for name, value in wanted.items():
            line = next(line for line in limits.splitlines() if line.startswith(name))
            assert line.removeprefix(name).split()[:2] == [value, value]


@pytest.mark.trio
@pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"),
    reason="needs Linux on x86-64 or AArch64",
)
async def test_the_kernel_filters_what_the_child_asks_for(files: Files) -> None:
    host = WatchedHost()
    async with running(files(), host) as text:
        status = await trio.Path(f"/proc/{host.children[0].pid}/status").read_text()
        assert "NoNewPrivs:\t1\n" in status and "Seccomp:\t2\n" in status
        ids = await text.encode("Once upon a time")
        assert await text.decode(ids, 0) == ("Once upon a time",) * 2


@pytest.mark.trio
async def test_a_child_ends_when_its_daemon_has_ended(files: Files) -> None:
    endless = b"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    data = files(chat_template=endless)
    blobs = {"tokenizer": data.tokenizer, "chat_template": endless}
    load = {"id": 1, "op": "load", "seconds": 10, "files": blobs}
    chat = {"id": 2, "op": "encode_chat", "seconds": 0.1, "messages": [], "now": 0}
    child = await RealHost().spawn(CHILD, [], ENVIRONMENT)
    try:
        for request in (load, {**chat, "add_generation_prompt": True}):
            await child.socket.send(pack_frame(request))
        with trio.fail_after(5):
            assert await child.wait() == -signal.SIGALRM
    finally:
        await child.stop(0)


@pytest.mark.trio
async def test_waiting_requests_are_bounded(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "TEXT_IN_FLIGHT", 2)
    codes: list[str] = []
    async with running(files()) as text, trio.open_nursery() as nursery:

        async def ask() -> None:
            try:
                await text.encode("x")
            except TextError as error:
                codes.append(error.code)

        for _ in range(5):
            nursery.start_soon(ask)
    assert codes == ["text-busy"] * 3


@pytest.mark.trio
async def test_calls_before_and_after_running_are_refused(files: Files) -> None:
    text = TextProcess(RealHost(), files())
    with pytest.raises(TextError) as caught:
        await text.encode("x")
    assert caught.value.code == "text-closed"
    async with running(files()) as text:
        pass
    with pytest.raises(TextError):
        await text.detokenizer()


class LateSocket:
    """The child's socket. A reply arrives in the instant in which its deadline passes."""

    def __init__(self, socket: Any, timeout: float) -> None:
        self._socket = socket
        self._timeout = timeout
        self._sent = -math.inf

    async def send(self, data: bytes) -> int:
        self._sent = trio.current_time()
        count: int = await self._socket.send(data)
        return count

    async def recv(self, size: int) -> bytes:
        data: bytes = await self._socket.recv(size)
        with trio.CancelScope(shield=True):
            await trio.sleep_until(self._sent + self._timeout + 0.01)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


@pytest.mark.trio
async def test_a_reply_in_the_instant_of_its_deadline_counts(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = WatchedHost()
    async with running(files(), host) as text:
        monkeypatch.setattr(process_module, "TEXT_TIMEOUT", 0.2)
        late = LateSocket(host.children[0].socket, timeout=0.2)
        ids = await text.encode("before")
        monkeypatch.setattr(RealChild, "socket", late)
        assert await text.encode("before") == ids  # the reader waits at the real socket still
        assert await text.encode("before") == ids
        assert await text.encode("before") == ids
        assert len(host.children) == 1


@pytest.mark.trio
async def test_likely_tokens_have_the_text_that_they_would_complete(files: Files) -> None:
    async with running(files()) as text:
        ids = await text.encode("Once upon a time é")
        chosen = await text.detokenizer()
        for number, token in enumerate(ids):
            other = ids[(number + 3) % len(ids)]
            texts = await chosen.texts([token, other, token])
            await chosen.push(token)
            assert texts[0] == texts[2] == chosen.completed
        assert await chosen.texts([]) == []
        with pytest.raises(TextError):
            await chosen.texts([2**32])
        with pytest.raises(TextError):
            await chosen.texts([1] * 21)
