"""Bodies become typed requests, or a refusal that names the parameter."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node import defaults
from shoal.node.errors import ApiRefusal
from shoal.node.http.requests import (
    COMPLETION_TOKENS,
    Asked,
    ChatBody,
    CompletionBody,
    read_chat,
    read_completion,
)
from shoal.tasks.engine.interface import NO_RULES, Rules
from shoal.tasks.text.process import ChatTurn

USER = {"role": "user", "content": "Hello"}


def chat(**more: Any) -> Asked:
    return read_chat(json.dumps({"model": "tiny", "messages": [USER]} | more).encode())


def completion(**more: Any) -> Asked:
    return read_completion(json.dumps({"model": "tiny", "prompt": "Hello"} | more).encode())


def test_defaults() -> None:
    asked = chat()
    assert asked == Asked(model="tiny", messages=(ChatTurn("user", "Hello"),))
    assert asked.temperature == 1.0 and asked.max_tokens is None
    assert completion() == Asked(model="tiny", prompt="Hello", max_tokens=COMPLETION_TOKENS)


def test_all_parameters() -> None:
    asked = chat(
        temperature=0.5, top_p=0.9, top_k=40, seed=-1, stop=["a", "bc"], max_completion_tokens=7,
        stream=True, stream_options={"include_usage": True}, logprobs=True, top_logprobs=7, n=1,
        user="me", metadata={"a": "b"}, store=False, presence_penalty=0, frequency_penalty=0.0,
        response_format={"type": "text"}, tools=None, logit_bias=None, service_tier="auto",
    )  # fmt: skip
    request = asked.for_gateway(99)
    assert request.sampling == (0.5, 40, 0.9, 2**64 - 1, 0.0)
    assert (request.max_tokens, request.stop, request.logprobs) == (7, ("a", "bc"), True)
    assert asked.stream and asked.include_usage and not request.raw
    assert request.user == "me" and request.top == 7
    assert completion(logprobs=5).for_gateway(1).top == 5
    assert chat(stop="x").stop == ("x",)


def test_rules() -> None:
    more = {"logit_bias": {"300": -100, "7": 0.5}, "min_p": 0.1}
    asked = chat(frequency_penalty=-2, presence_penalty=2.0, repetition_penalty=1.3, **more)
    request = asked.for_gateway(1)
    assert request.rules == Rules(((7, 0.5), (300, -100.0)), 1.3, -2.0, 2.0)
    assert request.sampling.min_p == 0.1
    neutral = completion(frequency_penalty=0, repetition_penalty=1, logit_bias={}, min_p=0)
    assert neutral.for_gateway(1).rules == NO_RULES


def test_exactness_and_a_text_that_was_received() -> None:
    request = chat(exact=True, received="Once", seed=3).for_gateway(1)
    assert (request.exact, request.received, request.sampling.seed) == (True, "Once", 3)
    assert not completion().for_gateway(1).exact and not completion().for_gateway(1).received


def test_a_completion_skips_the_template() -> None:
    request = completion(prompt=["In the"], logprobs=0, max_tokens=3).for_gateway(99)
    assert request.raw and request.prompt == "In the" and request.logprobs
    assert request.sampling.seed == 99


def test_roles_and_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    first = {"role": "developer", "content": "x"}
    asked = chat(messages=[first, {"role": "user", "content": parts}])
    assert asked.messages == (ChatTurn("system", "x"), ChatTurn("user", "ab"))


def test_an_answer_can_be_sent_back() -> None:
    """openai's client writes all fields of a message that it received."""
    back = {"role": "assistant", "content": "Hi", "refusal": None, "annotations": None,
            "audio": None, "function_call": None, "tool_calls": None}  # fmt: skip
    asked = chat(messages=[USER, back, USER])
    assert asked.messages is not None and len(asked.messages) == 3


@pytest.mark.parametrize(
    ("more", "param", "text"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "`tools` is not supported"),
        ({"logit_bias": {"1": 100.5}}, "logit_bias[...]", "from -100 to 100"),
        ({"logit_bias": {"1": "x"}}, "logit_bias[...]", "from -100 to 100"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "expected token ids, from 0"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "expected token ids, from 0"),
        ({"logit_bias": {"1\n": 1, "01": 1}}, "logit_bias", "expected token ids, from 0"),
        ({"logit_bias": {"١": 1}}, "logit_bias", "expected token ids, from 0"),
        ({"logit_bias": {str(2**31): 1}}, "logit_bias", "from 0 to 2^31 - 1"),
        ({"logit_bias": {str(each): 1 for each in range(1025)}}, "logit_bias", "at most 1024"),
        ({"logit_bias": [1]}, "logit_bias", "token ids in quotes"),
        ({"frequency_penalty": -2.5}, "frequency_penalty", "a number from -2 to 2"),
        ({"frequency_penalty": "x"}, "frequency_penalty", "a number from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "a number from 0.01 to 100"),
        ({"received": "Once"}, "seed", "together with `received`"),
        ({"min_p": 1.5}, "min_p", "a number from 0 to 1"),
        ({"min_p": -0.1}, "min_p", "a number from 0 to 1"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "not supported"),
        ({"functions": []}, "functions", "not supported"),
        ({"mirostat": 2}, "mirostat", "is not a parameter of this API"),
        ({"n": 2}, "n", "expected 1"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "from 0 to 20"),
        ({"top_logprobs": 3}, "top_logprobs", "only together with `logprobs`"),
        ({"presence_penalty": 2.5}, "presence_penalty", "a number from -2 to 2"),
        ({"temperature": 2.1}, "temperature", "<= 2.0"),
        ({"temperature": "hot"}, "temperature", "got `str`"),
        ({"top_p": 0}, "top_p", "> 0"),
        ({"max_tokens": 0}, "max_tokens", ">= 1"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "the same number"),
        ({"seed": 2**64}, "seed", "64 bits"),
        ({"seed": 1.5}, "seed", "got `float`"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "length <= 4"),
        ({"stop": [""]}, "stop[0]", "length >= 1"),
        ({"stop": "x" * 257}, "stop", "length <= 256"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "together with `stream`"),
        ({"response_format": {"type": "json_object"}}, "response_format.type", "json_object"),
        ({"messages": []}, "messages", "length >= 1"),
        ({"messages": [USER] * 1025}, "messages", "length <= 1024"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "tool"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "null"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is missing"),
        ({"messages": [USER | {"weight": 1}]}, "messages[0].weight", "not a parameter"),
        ({"messages": [USER | {"content": [{"type": "image_url"}]}]}, None, "image_url"),
        ({"model": ""}, "model", "length >= 1"),
        ({"model": "x" * 257}, "model", "length <= 256"),
        ({"user": "x" * 513}, "user", "length <= 512"),
    ],
)
def test_refused_by_name(more: dict[str, Any], param: str | None, text: str) -> None:
    with pytest.raises(ApiRefusal) as raised:
        chat(**more)
    assert raised.value.status == 400
    if param is not None:
        assert raised.value.param == param
    assert text in raised.value.message


@pytest.mark.parametrize(
    ("more", "param"),
    [({"logprobs": 21}, "logprobs"), ({"logprobs": True}, "logprobs"),
     ({"best_of": 2}, "best_of"), ({"echo": True}, "echo"),
     ({"suffix": "x"}, "suffix"), ({"prompt": [1, 2]}, "prompt[0]"), ({"prompt": []}, "prompt"),
     ({"prompt": ["a", "b"]}, "prompt"), ({"messages": [USER]}, "messages")],
)  # fmt: skip
def test_refused_in_a_completion(more: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiRefusal) as raised:
        completion(**more)
    assert raised.value.param == param


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"model":"\\ud800"}', b'{"model": "tiny"} x',
     b"[" * 100_000, b'{"model":"tiny","messages":' + b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_request(data: bytes) -> None:
    with pytest.raises(ApiRefusal) as raised:
        read_chat(data)
    assert raised.value.status == 400 and len(raised.value.message) < 300


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=10,
)
NAMES = st.sampled_from([*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__])


@given(st.dictionaries(NAMES | st.text(), VALUES, max_size=6))
def test_any_object_is_read_or_refused(more: dict[str, Any]) -> None:
    for read in (chat, completion):
        try:
            assert isinstance(read(**more), Asked)
        except ApiRefusal as refusal:
            assert refusal.status == 400 and len(refusal.message) < 500
            assert refusal.message.isprintable()


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    for read in (read_chat, read_completion):
        with pytest.raises(ApiRefusal):
            read(data)


def test_the_size_is_bounded() -> None:
    with pytest.raises(ApiRefusal, match="expected at most"):
        read_chat(b" " * (defaults.API_BODY + 1))


def test_a_model_may_be_named_with_an_adapter() -> None:
    for asked in (chat(model="tiny+poet"), completion(model="tiny+poet")):
        assert asked.model == "tiny+poet"
        request = asked.for_gateway(1)
        assert (request.model, request.adapter) == ("tiny", "poet")
    assert chat().for_gateway(1).adapter == ""
