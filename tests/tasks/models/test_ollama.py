"""Models of a local Ollama store, and stores that are damaged or lie."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from shoal.dht.errors import ModelError
from shoal.tasks.models.ollama import ollama_file

MODEL = "application/vnd.ollama.image.model"


def ignored(_done: int, _total: int) -> None:
    pass


class Store:
    """An Ollama store with one model."""

    def __init__(self, folder: Path, content: bytes = b"GGUF weights") -> None:
        self.folder = folder
        digest = hashlib.sha256(content).hexdigest()
        self.blob = folder / "blobs" / f"sha256-{digest}"
        self.blob.parent.mkdir(parents=True)
        self.blob.write_bytes(content)
        self.layer = {"mediaType": MODEL, "digest": f"sha256:{digest}", "size": len(content)}
        self.name("registry.ollama.ai/library/tiny/latest")

    def name(self, place: str, **manifest: Any) -> None:
        path = self.folder / "manifests" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        other = {"mediaType": "application/vnd.ollama.image.params", **self.layer}
        other["mediaType"] = "application/vnd.ollama.image.params"
        told = {"schemaVersion": 2, "layers": [self.layer, other], **manifest}
        path.write_text(json.dumps(told))

    def refused(self, name: str = "tiny") -> str:
        with pytest.raises(ModelError) as failure:
            ollama_file(self.folder, name, ignored)
        assert failure.value.hint
        return failure.value.code


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


@pytest.mark.parametrize("name", ["tiny", "tiny:latest", "library/tiny"])
def test_a_model_is_found_by_its_names(name: str, store: Store) -> None:
    assert ollama_file(store.folder, name, ignored) == store.blob


def test_other_names_are_found(store: Store) -> None:
    store.name("registry.ollama.ai/someone/model/1b")
    store.name("hf.co/org/repo-GGUF/Q4_K_M")
    assert ollama_file(store.folder, "someone/model:1b", ignored) == store.blob
    assert ollama_file(store.folder, "hf.co/org/repo-GGUF:Q4_K_M", ignored) == store.blob


def test_a_missing_blob_says_how_to_get_it(store: Store) -> None:
    store.blob.unlink()
    with pytest.raises(ModelError) as failure:
        ollama_file(store.folder, "tiny", ignored)
    assert failure.value.code == "missing-blob"
    assert failure.value.hint == "get it again: `ollama pull tiny`"


@pytest.mark.parametrize("content", [b"GGUF w3ights", b"GGUF", b"GGUF weights and more"])
def test_a_damaged_blob_is_refused(content: bytes, store: Store) -> None:
    store.blob.write_bytes(content)
    assert store.refused() == "bad-manifest"


@pytest.mark.parametrize(
    "name", ["../tiny", "tiny:../../x", "a/b/c/d", "/etc/passwd", "", "tiny:", ".hidden", "x" * 200]
)
def test_a_name_leads_nowhere_else(name: str, store: Store) -> None:
    if name == "tiny:":
        assert ollama_file(store.folder, name, ignored) == store.blob
    else:
        assert store.refused(name) == "bad-name"


@pytest.mark.parametrize(
    "layers",
    [
        [],
        [{"mediaType": MODEL, "digest": "sha256:../../etc/passwd", "size": 1}],
        [{"mediaType": MODEL, "digest": "md5:00", "size": 1}],
        [{"mediaType": MODEL, "size": 1}],
        [{"mediaType": MODEL, "digest": f"sha256:{'0' * 64}", "size": -1}],
        [{"mediaType": MODEL, "digest": f"sha256:{'0' * 64}", "size": 1}] * 2,
        [{"mediaType": MODEL, "digest": f"sha256:{'0' * 64}", "size": 1}] * 100,
        "many",
    ],
)
def test_a_malformed_manifest_is_refused(layers: Any, store: Store) -> None:
    store.name("registry.ollama.ai/library/tiny/latest", layers=layers)
    assert store.refused() == "bad-manifest"


def test_unknown_models_adapters_and_stores_are_named(store: Store, tmp_path: Path) -> None:
    assert store.refused("other") == "unknown-model"
    adapter = {**store.layer, "mediaType": "application/vnd.ollama.image.adapter"}
    store.name("registry.ollama.ai/library/tiny/latest", layers=[store.layer, adapter])
    assert store.refused() == "unsupported-architecture"
    with pytest.raises(ModelError) as failure:
        ollama_file(tmp_path / "none", "tiny", ignored)
    assert failure.value.code == "no-store" and "OLLAMA_MODELS" in str(failure.value.hint)
