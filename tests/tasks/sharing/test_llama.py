"""A real llama.cpp server behind real daemons. The server is built once, in many minutes."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.worlds import llama
from shoal.cli.client import request
from shoal.cli.errors import CommandError
from shoal.cli.swarm import LocalSwarm
from shoal.node.control.messages.api import GetApi
from shoal.node.control.messages.generation import GeneratedText, Run
from shoal.node.control.messages.models import ListModels
from shoal.node.control.messages.sharing import AddShare, ListShares, StopShare

pytestmark = pytest.mark.long
NAME = "my-llama"


@pytest.fixture(scope="module")
def program() -> Path:
    return llama.build()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "random.gguf"
    llama.write_model(path)
    return path


@pytest.fixture
def swarm() -> Iterator[LocalSwarm]:
    with LocalSwarm() as swarm:
        for _ in range(2):
            args = ["--listen", "127.0.0.1:0", "--memory", "64MiB", "--api", "0", "--no-jobs"]
            found = [node.status() for node in swarm.nodes]
            known = [status.addresses[0] for status in found if status is not None]
            more = [word for address in known for word in ("--bootstrap", address)]
            swarm.start([*args, *more])
            until(lambda: swarm.nodes[-1].status() is not None)
        yield swarm


def until(true: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def run(swarm: LocalSwarm, prompt: str = "Hello", node: int = 1, **more: Any) -> GeneratedText:
    return request(swarm.nodes[node].data, Run(model=NAME, prompt=prompt, **more), wait=True)


def direct(url: str, path: str, **fields: Any) -> Any:
    body = json.dumps(
        {"model": "x", "temperature": 0, "seed": 1, "top_k": 0, "min_p": 0.0} | fields
    )
    asked = urllib.request.Request(
        f"{url}{path}", body.encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=60) as response:
        return json.load(response)


def offered(swarm: LocalSwarm) -> list[str]:
    return [each.called for each in request(swarm.nodes[1].data, ListModels()).shared]


def test_a_llama_server_answers_the_swarm(program: Path, model: Path, swarm: LocalSwarm) -> None:
    owner = swarm.nodes[0].data
    with llama.serving(program, model, "--alias", "random", "-np", "2", "-c", "2048") as url:
        added = request(owner, AddShare(url=url, name=NAME), wait=True)
        (share,) = added.shares
        assert share.engine == "llama.cpp" and share.offered and share.context > 0
        until(lambda: offered(swarm) == [NAME])

        chat = direct(url, "/v1/chat/completions", max_tokens=24,
                      messages=[{"role": "user", "content": "Hello"}])  # fmt: skip
        answer = run(swarm, max_tokens=24, seed=1)
        assert answer.text == chat["choices"][0]["message"]["content"] != ""
        assert answer.prompt_tokens == chat["usage"]["prompt_tokens"]
        assert answer.tokens == chat["usage"]["completion_tokens"]
        assert answer.reason == "length" and answer.shared_by

        raw = direct(url, "/v1/completions", max_tokens=24, prompt="Once")
        assert run(swarm, "Once", raw=True, max_tokens=24).text == raw["choices"][0]["text"]

        hot = [run(swarm, max_tokens=24, temperature=1.0, seed=seed).text for seed in (5, 5, 6)]
        assert hot[0] == hot[1] != hot[2]
        stop = answer.text[5:7]
        cut = run(swarm, max_tokens=24, seed=1, stop=(stop,))
        assert cut.text == answer.text[: answer.text.index(stop)] and cut.reason == "stop"

        with pytest.raises(CommandError) as caught:
            run(swarm, "x" * 9000, max_tokens=8)
        assert caught.value.code == "engine-refused" and "context" in caught.value.message

        _cancels(swarm, url)
        _api(swarm)
    until(lambda: offered(swarm) == [], 30)
    (share,) = request(owner, ListShares()).shares
    assert not share.offered and share.trouble
    with pytest.raises(CommandError) as caught:
        run(swarm)
    assert caught.value.code in ("unknown-model", "not-shared")
    request(owner, StopShare(name=NAME))
    assert request(owner, ListShares()).shares == ()


def _cancels(swarm: LocalSwarm, url: str) -> None:
    """A client that is interrupted stops the server's work."""
    command = [str(Path(sys.executable).parent / "shoal"), "run", NAME, "Hello",
               "--max-tokens", "900", "--data", str(swarm.nodes[1].data)]  # fmt: skip
    client = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert client.stdout is not None and client.stdout.read(20)
    client.kill()
    client.communicate()
    until(lambda: all(not slot["is_processing"] for slot in _slots(url)), 10)


def _slots(url: str) -> Any:
    with urllib.request.urlopen(f"{url}/slots", timeout=10) as response:
        return json.load(response)


def _api(swarm: LocalSwarm) -> None:
    """The HTTP API streams a shared model's answer, with usage, and says that it has no root."""
    api = request(swarm.nodes[1].data, GetApi())
    headers = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{api.url}/models", headers=headers)
    ) as got:
        listed = {each["id"]: each["owned_by"] for each in json.load(got)["data"]}
    assert "no root" in listed[NAME]
    body = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12,
            "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
    asked = urllib.request.Request(
        f"{api.url}/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(asked, timeout=60) as response:
        lines = [line[6:] for line in response.read().decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    documents = [json.loads(line) for line in lines[:-1]]
    assert documents[-1]["usage"]["completion_tokens"] == 12
    changes: tuple[dict[str, Any], ...] = ({"logprobs": True}, {"tools": []})
    for change in changes:
        asked = urllib.request.Request(
            f"{api.url}/chat/completions", json.dumps(body | change).encode(), headers
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(asked, timeout=60)
        assert caught.value.code == 400
