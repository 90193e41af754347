"""Embeddings over HTTP: the bodies that are read, and the documents of the answers."""

import base64
import json
import struct
from array import array
from pathlib import Path
from typing import Any

import pytest

from shoal.node.errors import ApiRefusal
from shoal.node.http.embeddings import INPUTS, EmbeddingsBody, read_embeddings
from shoal.tasks.inference.embedding import Embeddings

from .serving import serving

PATH = "/v1/embeddings"


def body(given: Any, **more: Any) -> EmbeddingsBody:
    return read_embeddings(json.dumps({"model": "tiny", "input": given} | more).encode())


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("Hello", ("Hello",)),
        (["a", "b"], ("a", "b")),
        ([1, 2, 0], ((1, 2, 0),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["a"] * INPUTS, ("a",) * INPUTS),
        ([7] * 2 * INPUTS, ((7,) * 2 * INPUTS,)),
    ],
)
def test_all_forms_of_input(given: Any, inputs: Any) -> None:
    assert body(given).for_gateway().inputs == inputs


def test_other_parameters() -> None:
    request = body("a", user="me", dimensions=8).for_gateway()
    assert (request.model, request.user, request.dimensions) == ("tiny", "me", 8)
    adapted = body("a", model="tiny+poet").for_gateway()
    assert (adapted.model, adapted.adapter, request.adapter) == ("tiny", "poet", "")


@pytest.mark.parametrize(
    ("given", "more", "param", "text"),
    [
        ([], {}, "input", "none empty"),
        (7, {}, "input", "expected a text, token ids"),
        ({"a": 1}, {}, "input", "expected a text, token ids"),
        (["a", 1], {}, "input", "not a mix"),
        ([1, [1]], {}, "input", "not a mix"),
        ([-1], {}, "input[0]", "expected a text, token ids"),
        ([2**31], {}, "input[0]", "expected a text, token ids"),
        ([1.5], {}, "input[0]", "expected a text, token ids"),
        ([None], {}, "input[0]", "expected a text, token ids"),
        ([[["a"]]], {}, "input[0][0]", "expected a text, token ids"),
        (["a"] * (INPUTS + 1), {}, "input", f"at most {INPUTS} inputs, got {INPUTS + 1}"),
        ([[1]] * (INPUTS + 1), {}, "input", f"at most {INPUTS} inputs"),
        ("a", {"encoding_format": "hex"}, "encoding_format", "`float` or `base64`"),
        ("a", {"dimensions": 0}, "dimensions", ">= 1"),
        ("a", {"temperature": 1}, "temperature", "not a parameter"),
        ("a", {"user": "x" * 600}, "user", "length"),
    ],
)
def test_refusals_name_the_parameter(given: Any, more: Any, param: str, text: str) -> None:
    with pytest.raises(ApiRefusal) as caught:
        body(given, **more)
    assert caught.value.param == param and text in caught.value.message, caught.value.message


@pytest.mark.parametrize("kind", ["float", "base64", None])
def test_documents_lose_no_bit(kind: str | None) -> None:
    vectors = tuple(array("f", [n / 3, -1e-30, 1.0]) for n in range(3))
    pieces = body("a", encoding_format=kind).document(Embeddings(vectors, 12))
    found = json.loads(b"".join(pieces))
    assert {name: found[name] for name in ("object", "model", "usage")} == {
        "object": "list",
        "model": "tiny",
        "usage": {"prompt_tokens": 12, "total_tokens": 12},
    }
    assert [each["index"] for each in found["data"]] == [0, 1, 2]
    for each, vector in zip(found["data"], vectors, strict=True):
        assert each["object"] == "embedding"
        values = each["embedding"]
        if kind == "base64":
            values = struct.unpack("<3f", base64.b64decode(values))
        assert array("f", values) == vector


@pytest.mark.trio
async def test_over_http(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        answer = await served.ask(served.post({"model": "tiny", "input": ["a", "b"]}, PATH))
        refused = await served.ask(served.post({"model": "tiny"}, PATH))
        wrong = await served.ask(served.head("GET", PATH))
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    assert [each["embedding"] for each in json.loads(answer.body)["data"]] == [[0, 0.5], [1, 0.5]]
    assert refused.status == 400 and refused.error["param"] == "input"
    assert wrong.status == 405 and wrong.headers["allow"] == "POST"
