"""LoRA adapters from end to end: three real daemons with a third of the layers each."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from shoal.cli.errors import CommandError
from shoal.node.defaults import EMBEDDED_ROOT
from shoal.tasks.adapters.file import encode_head
from shoal.tasks.engine.adapters import AdapterTerms
from tests.cli.daemons import Daemon, daemons, shoal
from tests.tasks import peft_folder

pytestmark = pytest.mark.ci

TINY = Path(__file__).parents[1] / "shoal" / "models" / "tiny"
CONFIG = json.loads((TINY / "config.json").read_text())
PROMPT, TOKENS = "The king said to his", 16
ONE: dict[str, Any] = {"rank": 8, "seed": 1, "std": 0.08}
TWO: dict[str, Any] = {"rank": 3, "seed": 2, "std": 0.1}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Daemon]]:
    """Three stages. The first and the second one have an adapter each, called `poet`."""
    folder = tmp_path_factory.mktemp("adapters")
    with daemons() as start:
        found: list[Daemon] = []
        for index in range(3):
            layers = f"{2 * index}:{2 * index + 2}"
            words = ["--no-lan", "--model", "tiny", "--layers", layers, "--memory", "1GiB"]
            if found:
                words += ["--bootstrap", found[0].address]
            found.append(start(folder / str(index), *words))
            found[-1].wait_until(lambda status: bool(status["addresses"]))
        for node in found:
            node.wait_until(lambda status: status["serving"]["phase"] == "serving")
            node.wait_until(
                lambda status: any(m["name"] == "tiny" and m["complete"] for m in status["models"])
            )
        for node, options in zip(found, (ONE, TWO), strict=False):
            tensors = peft_folder.make_tensors(CONFIG, **options)
            path = peft_folder.save(folder / "poet", tensors, rank=options["rank"])
            added = shoal("adapter", "add", str(path), "--data", str(node.data))
            assert added.returncode == 0 and "added poet: rank" in added.stdout, added
        yield found


def text(node: Daemon, adapter: str | None = None, tokens: int = TOKENS) -> str:
    more = {} if adapter is None else {"adapter": adapter}
    asked = {"model": "tiny", "prompt": PROMPT, "raw": True, "max_tokens": tokens, **more}
    return str(node.ask("run", wait=True, **asked)["text"])


def root(node: Daemon) -> str:
    return str(node.ask("adapter_show", name="poet")["root"])


@pytest.fixture(scope="module")
def reference() -> Callable[..., str]:
    """The text that transformers generates with merged weights."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)

    def generate(**options: Any) -> str:
        model = transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()
        if options:
            peft_folder.merge(model, peft_folder.make_tensors(CONFIG, **options), 2.0)
        torch.set_num_threads(1)  # two wait for each other where the cores are busy
        ids = tokenizer(PROMPT, return_tensors="pt").input_ids
        with torch.inference_mode():
            out = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)
        return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))

    return generate


def test_texts_are_those_of_merged_weights(
    nodes: list[Daemon], reference: Callable[..., str]
) -> None:
    """By name where it was added, and by hash elsewhere; names are those of a node."""
    plain, one, two = reference(), reference(**ONE), reference(**TWO)
    assert len({plain, one, two}) == 3
    assert text(nodes[0]) == plain
    assert text(nodes[0], "poet") == one
    assert text(nodes[1], "poet") == two
    assert text(nodes[2], root(nodes[0])) == one
    assert text(nodes[2], root(nodes[1])[:64]) == two
    assert text(nodes[0]) == plain


def test_many_at_once_give_the_same_texts(nodes: list[Daemon]) -> None:
    wanted = [None, root(nodes[0]), root(nodes[1])] * 3
    alone = {each: text(nodes[2], each) for each in set(wanted)}
    got: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda i=i, each=each: got.update({i: text(nodes[2], each)}))
        for i, each in enumerate(wanted)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [got[i] for i in range(len(wanted))] == [alone[each] for each in wanted]


def hostile(kind: str) -> bytes:
    """The bytes of a bad adapter."""
    layers = tuple(range(6))
    base, rank = EMBEDDED_ROOT, 2
    values = rank * (256 + 256 + 2 * (256 + 128) + 256 + 256 + 3 * (256 + 640)) * 6
    body = bytes(4 * values)
    if kind == "another model":
        base = "cd" * 32
    if kind == "another rank":
        rank = 3
    if kind == "not finite":
        body = body[:-4] + b"\0\0\xc0\x7f"
    terms = AdapterTerms(base, rank, 4.0, False, "F32", peft_folder.LLAMA_MODULES, layers)
    head = encode_head(terms)
    return b"junk" * 1000 if kind == "junk" else head + body


@pytest.mark.parametrize("kind", ["another model", "another rank", "not finite", "junk"])
def test_a_bad_adapter_fails_its_request_alone(
    nodes: list[Daemon], tmp_path: Path, kind: str
) -> None:
    """`not finite` is refused by the stages, the others by the gateway."""
    (tmp_path / "bad").write_bytes(hostile(kind))
    bad = nodes[0].ask("blob_add", path=str(tmp_path / "bad"), wait=True)["root"]
    expected, beside = text(nodes[0], "poet", 60), list[str]()
    thread = threading.Thread(target=lambda: beside.append(text(nodes[0], "poet", 60)))
    thread.start()
    for _ in range(3):
        with pytest.raises(CommandError) as caught:
            text(nodes[0], bad)
        assert caught.value.code == "bad-adapter", caught.value
    thread.join(60)
    assert beside == [expected]
    assert all(node.process.poll() is None for node in nodes)


def test_an_unknown_adapter_is_refused(nodes: list[Daemon]) -> None:
    for name in ("nobody", "ab" * 4):
        with pytest.raises(CommandError) as caught:
            text(nodes[0], name)
        assert caught.value.code == "no-adapter"


def test_commands(nodes: list[Daemon], tmp_path: Path) -> None:
    """`run --adapter`, pull, list, show and rm, as a person types them."""
    node = nodes[2]
    data = "--data", str(node.data)
    answer = shoal("run", "tiny", PROMPT, "--raw", "--max-tokens", "16", "--adapter",
                   root(nodes[0]), *data)  # fmt: skip
    assert answer.stdout.strip("\n") == text(nodes[0], "poet")
    pulled = shoal("adapter", "pull", root(nodes[0]), "--name", "bard", *data)
    assert pulled.returncode == 0 and "LoRA" in pulled.stdout, pulled
    assert text(node, "bard") == text(nodes[0], "poet")
    listed = shoal("adapter", "list", *data).stdout
    assert "bard" in listed and "tiny" in listed
    shown = json.loads(shoal("adapter", "show", "bard", "--json", *data).stdout)
    assert (shown["rank"], shown["layers"], shown["scale"]) == (8, "0:6", 2.0)
    removed = shoal("adapter", "rm", "bard", "--yes", *data)
    assert removed.returncode == 0 and "removed" in removed.stdout, removed
    assert "no adapters" in shoal("adapter", "list", *data).stdout
    folder = peft_folder.save(tmp_path / "a", peft_folder.make_tensors(CONFIG), use_dora=True)
    refused = shoal("adapter", "add", str(folder), *data)
    assert refused.returncode != 0 and "use_dora" in refused.stderr and "hint:" in refused.stderr
