"""The official client of OpenAI against real daemons: a gateway without torch, and one with layers.

`shoal run` asks the same gateway, so its texts are what the API must give.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.cli.daemons import Daemon, daemons, shoal

pytestmark = pytest.mark.ci

PROMPT = "In the beginning"
USER: Any = {"role": "user", "content": PROMPT}
LONG = 40  # tokens


@dataclass
class Pair:
    """The gateway's daemon, and a client of its API."""

    gateway: Daemon
    client: OpenAI

    def chat(self, **more: Any) -> Any:
        given = {"model": "tiny", "messages": [USER], "max_tokens": LONG, "temperature": 0}
        return self.client.chat.completions.create(**{**given, **more})

    def run(self, *words: str) -> dict[str, Any]:
        """Return the answer of `shoal run`."""
        done = shoal("run", "tiny", PROMPT, "--max-tokens", str(LONG), "--json", *words,
                     "--data", str(self.gateway.data))  # fmt: skip
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def sessions(self) -> int:
        return int(self.gateway.ask("status")["sessions"]["gateway"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("api")
    with daemons() as start:
        worker = start(folder / "1", "--model", "tiny")
        worker.wait_until(lambda status: bool(status["addresses"]))
        gateway = start(folder / "2", "--bootstrap", worker.address, "--api", "0", torch=False)
        worker.wait_until(lambda status: bool(status["serving"]["phase"] == "serving"))
        gateway.wait_until(lambda status: any(model["complete"] for model in status["models"]))
        api = gateway.ask("api")
        with OpenAI(base_url=api["url"], api_key=api["token"], max_retries=0) as client:
            yield Pair(gateway, client)
        assert gateway.end() == 0, gateway.log.read_text()


def test_models(pair: Pair) -> None:
    assert [model.id for model in pair.client.models.list()] == ["tiny"]
    assert pair.client.models.retrieve("tiny").owned_by == "shoal"
    with pytest.raises(openai.NotFoundError):
        pair.client.models.retrieve("no-such-model")


def test_a_chat_is_what_run_answers(pair: Pair) -> None:
    expected, answer = pair.run(), pair.chat()
    (choice,) = answer.choices
    assert choice.message.content == expected["text"] and choice.message.role == "assistant"
    assert choice.finish_reason == ("stop" if expected["reason"] == "stop" else "length")
    assert answer.usage.prompt_tokens == expected["prompt_tokens"]
    assert answer.usage.completion_tokens == expected["tokens"]


def test_a_streamed_chat_is_the_same(pair: Pair) -> None:
    whole = pair.chat()
    *chunks, usage = pair.chat(stream=True, stream_options={"include_usage": True})
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert usage.usage == whole.usage and not usage.choices


def test_a_completion_is_what_run_continues(pair: Pair) -> None:
    expected = pair.run("--raw")
    answer = pair.client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=LONG, temperature=0, logprobs=0
    )
    (choice,) = answer.choices
    assert choice.text == expected["text"] and choice.logprobs is not None
    assert "".join(choice.logprobs.tokens or ()) == choice.text
    stream = pair.client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=LONG, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == choice.text


def test_a_seed_repeats_the_text(pair: Pair) -> None:
    expected = pair.run("--temperature", "1", "--seed", "5", "--top-p", "0.9")["text"]
    for _ in range(2):
        answer = pair.chat(temperature=1, seed=5, top_p=0.9)
        assert answer.choices[0].message.content == expected
    assert pair.chat(temperature=1, seed=6).choices[0].message.content != expected


def test_penalties_and_biases(pair: Pair) -> None:
    """Both kinds of answers have the text of `shoal run`, which differs from that without rules."""
    plain = pair.chat(logprobs=True).choices[0]
    more = "--frequency-penalty", "0.8", "--presence-penalty", "0.5", "--repetition-penalty", "1.4"
    expected = pair.run(*more, "--min-p", "0.05")["text"]
    extra = {"repetition_penalty": 1.4, "min_p": 0.05}
    asked = {"frequency_penalty": 0.8, "presence_penalty": 0.5, "extra_body": extra}
    assert pair.chat(**asked).choices[0].message.content == expected != plain.message.content
    chunks = list(pair.chat(stream=True, **asked))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    said = pair.chat(logit_bias={"300": 100}, max_tokens=3, logprobs=True).choices[0]
    assert len({token.token for token in said.logprobs.content}) == 1, "always this token"
    assert all(token.logprob < -0.01 for token in said.logprobs.content), "the model's own"
    assert pair.run("--logit-bias", "300=100", "--max-tokens", "3")["text"] == said.message.content
    with pytest.raises(openai.BadRequestError, match="the model's tokens end with"):
        pair.chat(logit_bias={str(2**31 - 1): 1})


def test_stop_strings_also_across_tokens(pair: Pair) -> None:
    """Neither the text, nor a chunk, nor a token shows anything of the stop string or after it."""
    text: str = pair.chat().choices[0].message.content
    tokens = [token.token for token in pair.chat(logprobs=True).choices[0].logprobs.content]
    assert "".join(tokens) == text and len(tokens) > 8
    start = len("".join(tokens[:4])) + 1  # within the fifth token
    stop = text[start : start + len(tokens[4]) + 2]  # and into the next one
    kept = text[: text.index(stop)]
    for more in ({}, {"logprobs": True}):
        answer = pair.chat(stop=["never", stop], **more)
        assert answer.choices[0].message.content == kept
        assert answer.choices[0].finish_reason == "stop"
        chunks = list(pair.chat(stop=stop, stream=True, **more))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == kept
    shown = [token.token for token in answer.choices[0].logprobs.content]
    assert kept.startswith("".join(shown)) and shown == tokens[: len(shown)]
    found = [token.token for chunk in chunks if (logprobs := chunk.choices[0].logprobs)
             for token in logprobs.content]  # fmt: skip
    assert found == shown


def test_the_most_likely_tokens(pair: Pair) -> None:
    """A greedy answer consists of the first of each; a streamed one has the same."""
    (choice,) = pair.chat(logprobs=True, top_logprobs=5).choices
    content = choice.logprobs.content
    for token in content:
        assert len(token.top_logprobs) == 5 and token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob)
        values = [each.logprob for each in token.top_logprobs]
        assert values == sorted(values, reverse=True)
    chunks = pair.chat(logprobs=True, top_logprobs=5, stream=True)
    streamed = [token for chunk in chunks if (found := chunk.choices[0].logprobs)
                for token in found.content]  # fmt: skip
    assert streamed == content
    completion = pair.client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=5, temperature=0, logprobs=2
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None and logprobs.top_logprobs is not None
    for text, tops in zip(logprobs.tokens or (), logprobs.top_logprobs, strict=True):
        assert text in tops and len(tops) <= 2


def test_the_limit_is_a_reason(pair: Pair) -> None:
    answer = pair.chat(max_tokens=3)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 3
    assert pair.chat(max_tokens=openai.omit, max_completion_tokens=2).usage.completion_tokens == 2


def test_a_prompt_over_the_context_is_refused(pair: Pair) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as raised:
            pair.chat(messages=[{"role": "user", "content": "word " * 3000}], stream=stream)
        assert raised.value.code == "context_length_exceeded"
        assert "the model's context holds" in raised.value.message


def test_refusals(pair: Pair) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        pair.chat(model="tinny")
    assert unknown.value.code == "model_not_found" and "did you mean `tiny`" in str(unknown.value)
    with pytest.raises(openai.BadRequestError) as unsupported:
        pair.chat(tools=[{"type": "function", "function": {"name": "f"}}])
    assert unsupported.value.param == "tools"
    with pytest.raises(openai.NotFoundError) as later:
        pair.client.moderations.create(model="tiny", input="x")
    assert later.value.code == "unknown_url"
    with pytest.raises(openai.AuthenticationError):
        pair.client.with_options(api_key="wrong").models.list()


def test_embeddings(pair: Pair) -> None:
    texts = ["In the beginning", "the", "In the beginning", "light " * 300]
    found = pair.client.embeddings.create(model="tiny", input=texts)
    vectors = [each.embedding for each in found.data]
    assert [each.index for each in found.data] == [0, 1, 2, 3]
    assert vectors[0] == pytest.approx(vectors[2], abs=1e-6)
    assert vectors[0] != pytest.approx(vectors[1], abs=1e-3)
    assert [sum(value * value for value in vector) for vector in vectors] == pytest.approx([1] * 4)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 300
    floats = pair.client.embeddings.create(model="tiny", input=texts[3], encoding_format="float")
    assert floats.data[0].embedding == pytest.approx(vectors[3], abs=1e-6)
    size = len(vectors[0])
    same = pair.client.embeddings.create(model="tiny", input=[[5, 6], [7]], dimensions=size)
    alone = pair.client.embeddings.create(model="tiny", input=[5, 6])
    assert same.data[0].embedding == pytest.approx(alone.data[0].embedding, abs=1e-6)
    assert pair.sessions() == 0


def test_refused_embeddings(pair: Pair) -> None:
    create = pair.client.embeddings.create
    with pytest.raises(openai.BadRequestError) as long:
        create(model="tiny", input=["short", "word " * 3000])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as cut:
        create(model="tiny", input="x", dimensions=7)
    assert cut.value.param == "dimensions" and "dimensions, 7 were asked for" in cut.value.message
    with pytest.raises(openai.BadRequestError, match="not one of the"):
        create(model="tiny", input=[2**31 - 1])
    with pytest.raises(openai.BadRequestError, match="the input is empty"):
        create(model="tiny", input=[[1], []])


def test_a_chain_of_two_gives_the_embeddings_of_one(pair: Pair, tmp_path: Path) -> None:
    given: Any = {"model": "tiny", "input": [PROMPT, "light " * 300]}
    alone = [each.embedding for each in pair.client.embeddings.create(**given).data]
    with daemons() as start:
        first = start(tmp_path / "1", "--model", "tiny", "--layers", "0:3", "--api", "0")
        first.wait_until(lambda status: bool(status["addresses"]))
        start(tmp_path / "2", "--bootstrap", first.address, "--model", "tiny", "--layers", "3:6")
        first.wait_until(lambda status: any(model["complete"] for model in status["models"]))
        api = first.ask("api")
        with OpenAI(base_url=api["url"], api_key=api["token"], max_retries=0) as client:
            chained = [each.embedding for each in client.embeddings.create(**given).data]
    for one, other in zip(alone, chained, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_a_cancelled_stream_frees_its_session(pair: Pair) -> None:
    stream = pair.chat(max_tokens=900, stream=True)
    next(iter(stream))
    assert pair.sessions() == 1
    stream.close()
    deadline = time.monotonic() + 60
    while pair.sessions():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_command_shows_how_to_use_it(pair: Pair) -> None:
    shown = shoal("api", "--json", "--data", str(pair.gateway.data))
    api = json.loads(shown.stdout)
    assert api == pair.gateway.ask("api") and api["model"] == "tiny"
    text = shoal("api", "--data", str(pair.gateway.data)).stdout
    assert text.count(api["url"]) == 3 and text.count(api["token"]) == 3
    example = text[text.index("from openai") :]
    said: list[str] = []
    exec(example, {"print": said.append})  # noqa: S102  the example that people paste
    assert len(said) == 1 and isinstance(said[0], str)
