"""Answers whose beginning the client has from another gateway, and answers that must be exact."""

from typing import Any

import pytest
import trio

from shoal.tasks.costs.chain import NO_PRICES
from shoal.tasks.drafting.sessions import Drafting
from shoal.tasks.drafting.speculation import DraftCounts
from shoal.tasks.errors import SessionError
from shoal.tasks.inference.chain import Chains
from shoal.tasks.inference.gateway import GatewayEvent, GenerateRequest
from shoal.tasks.inference.generation import Model, Summary
from shoal.tasks.inference.messages import Open
from shoal.tasks.text.process import TextDelta
from tests.tasks.fake_swarm import VOCABULARY, FakeSwarm, FakeText

PROMPT, TOKENS = "once upon a time", 40


async def encode(text: str, *, add_special: bool = True) -> list[int]:
    """Encode a text, or a generated one, whose tokens are numbers."""
    await trio.lowlevel.checkpoint()
    if text[:1].isdigit():
        return [int(word) for word in text.split() if word.isdigit()]
    return [ord(letter) % VOCABULARY for letter in text]


class Asked:
    """A swarm of three stages, and the answer that it gives."""

    def __init__(self) -> None:
        self.swarm = FakeSwarm((2, 4, 6))
        ids = [ord(letter) % VOCABULARY for letter in PROMPT]
        self.text = "".join(f"{token} " for token in self.swarm.expected(ids, TOKENS)) + "."

    async def answer(self, **more: Any) -> tuple[str, Summary]:
        """Return the text that a client gets, and the summary."""
        more = {"max_tokens": TOKENS, **more}
        heard, found = list[str](), list[Summary]()

        async def emit(event: GatewayEvent) -> None:
            await trio.lowlevel.checkpoint()
            if isinstance(event, TextDelta):
                heard.append(event.text)

        async def body(swarm: FakeSwarm) -> None:
            swarm.wire.delay = 0.02
            request = GenerateRequest("m", PROMPT, raw=True, **more)
            found.append(await swarm.client.gateway.generate(request, emit))

        await self.swarm.run(body)
        return "".join(heard), found[0]

    async def model(self) -> Model:
        """Return the model of the swarm."""
        async with self.swarm.client.gateway._use("m", "") as model:
            return model

    async def code(self, **more: Any) -> str:
        """Return the code with which a request is refused."""
        with pytest.RaisesGroup(pytest.RaisesExc(SessionError)) as caught:
            await self.answer(**more)
        error = caught.value.exceptions[0]
        assert isinstance(error, SessionError)
        return error.code


@pytest.mark.trio
@pytest.mark.parametrize("part", [0.02, 0.5, 1.0])
async def test_an_answer_goes_on_at_another_gateway(autojump_clock: object, part: float) -> None:
    asked = Asked()
    received = asked.text[: int(part * len(asked.text))]
    rest, summary = await asked.answer(received=received)
    assert (received + rest, summary.text) == (asked.text, asked.text)


@pytest.mark.trio
async def test_the_text_that_was_received_is_drafted(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeText, "encode", staticmethod(encode))
    asked = Asked()
    gateway = asked.swarm.client.gateway
    gateway.drafting = Drafting(fixed=(4, 2))
    assert await asked.code(received=asked.text, max_tokens=1) == "other-text"
    model = (await asked.model()).identity
    drafts = gateway.drafting.begin("", model, 3, 999, DraftCounts(), NO_PRICES)
    await drafts.read([ord(letter) % VOCABULARY for letter in PROMPT])
    guesses = [token for window in drafts.windows() for token in window.tokens]
    assert len(guesses) > 4  # the first one is the last token of the prompt
    assert asked.text.startswith(" ".join(map(str, guesses[1:])))


@pytest.mark.trio
async def test_another_text_is_refused(autojump_clock: object) -> None:
    asked = Asked()
    assert await asked.code(received="x" + asked.text[1:]) == "other-text"
    assert await Asked().code(received=asked.text + "more") == "other-text"
    assert await Asked().code(received=asked.text, logprobs=True) == "bad-request"


@pytest.mark.trio
async def test_an_exact_answer_has_no_int8(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither over a slow link, nor in KV from another node."""
    monkeypatch.setattr(Chains, "activations", lambda *_: "int8")
    asked, opened, order = Asked(), list[tuple[bool, str]](), Chains._order

    def ordered(self: Chains, *args: Any) -> Open:
        found = order(self, *args)
        opened.append((found.exact, found.activations))
        return found

    monkeypatch.setattr(Chains, "_order", ordered)
    await asked.answer(exact=True)
    assert opened == [(True, "exact")] * 3
