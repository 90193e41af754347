"""llama.cpp's server beside us: built once from its source package, with a small random model.

`build` takes 10 to 20 minutes of a core and keeps the program in a cache folder. `write_model`
writes a GGUF file whose answers are printable text. `serving` runs the server on loopback.
"""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

PACKAGE: Final = "llama-cpp-python==0.3.36"
PROGRAM: Final = "SHOAL_LLAMA_SERVER"
"""Environment variable with the path of a server that is built already."""
START_SECONDS: Final = 120.0
_OPTIONS: Final = (
    "-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF",
    "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_SERVER=ON", "-DGGML_OPENMP=OFF",
)  # fmt: skip
_UINT, _INT, _FLOAT, _TEXT, _ARRAY = 4, 5, 6, 8, 9  # types of values in GGUF
_F32, _F16 = 0, 1  # types of tensors
_ALIGN = 32
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # types of tokens
_PRINTABLE: Final = [chr(code) for code in range(0x21, 0x7F)]


@dataclass(frozen=True)
class Shape:
    """Shape of a random Llama model."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    inner: int = 128
    context: int = 1024
    seed: int = 1


TINY: Final = Shape()
SMALL: Final = Shape(hidden=768, layers=12, heads=12, inner=2048, context=2048)
"""85 million parameters: 170 MB in float16, so that a token takes as long as with common models."""


def find() -> Path | None:
    """Return a server that is built already, or None."""
    named = os.environ.get(PROGRAM)
    found = [Path(named)] if named else [_cache() / "llama-server"]
    return next((path for path in found if path.exists()), None)


def build() -> Path:
    """Return the path of the server. Builds it if there is none, with cmake and a compiler."""
    if (found := find()) is not None:
        return found
    target = _cache() / "llama-server"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        get = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*get, PACKAGE, "-d", name], check=True, stdout=sys.stderr)
        with tarfile.open(next(folder.glob("*.tar.gz"))) as packed:
            packed.extractall(folder, filter="data")
        source = next(folder.glob("*/vendor/llama.cpp"))
        made = folder / "build"
        configure = ["cmake", "-S", str(source), "-B", str(made), *_OPTIONS]
        subprocess.run(configure, check=True, stdout=sys.stderr)
        make = ["cmake", "--build", str(made), "--target", "llama-server", "--parallel", "2"]
        subprocess.run(make, check=True, stdout=sys.stderr)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(made / "bin" / "llama-server", target)
    return target


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "shoal-bench" / PACKAGE


@contextmanager
def serving(program: Path, model: Path, *more: str, threads: int = 1) -> Iterator[str]:
    """Run the server with a model at a free port. Yields its URL once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(program), "-m", str(model), "--host", "127.0.0.1", "--port", str(port),
               "-t", str(threads), "--no-webui", *more]  # fmt: skip
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, process)
            yield url
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def _wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"llama-server ended with status {process.returncode}")
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2) as response:
            if json.load(response).get("status") == "ok":
                return
        time.sleep(0.1)
    raise RuntimeError("llama-server did not start")


# The model.


def write_model(path: Path, shape: Shape = TINY) -> None:
    """Write a random Llama model in float16, with a tokenizer of single characters and bytes."""
    tokens, types = _vocabulary()
    tensors = _tensors(shape, len(tokens), types)
    with path.open("wb") as file:
        fields = _fields(shape, tokens, types)
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)))
        for name, kind, value in fields:
            file.write(_text(name) + struct.pack("<I", kind) + _value(kind, value))
        offset = 0
        for name, values in tensors.items():
            dims = values.shape[::-1]
            kind = _F16 if values.dtype == np.float16 else _F32
            file.write(
                _text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
            )
            offset += -(-values.nbytes // _ALIGN) * _ALIGN
        for values in tensors.values():
            file.write(b"\0" * (-file.tell() % _ALIGN))
            file.write(values.tobytes())
        file.write(b"\0" * (-file.tell() % _ALIGN))


def _vocabulary() -> tuple[list[str], list[int]]:
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        *_PRINTABLE,
    ]
    types = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * (1 + len(_PRINTABLE))]
    return tokens, types


def _fields(shape: Shape, tokens: list[str], types: list[int]) -> list[tuple[str, int, Any]]:
    size = shape.hidden // shape.heads
    return [
        ("general.architecture", _TEXT, "llama"),
        ("general.name", _TEXT, "random"),
        ("llama.context_length", _UINT, shape.context),
        ("llama.embedding_length", _UINT, shape.hidden),
        ("llama.block_count", _UINT, shape.layers),
        ("llama.feed_forward_length", _UINT, shape.inner),
        ("llama.attention.head_count", _UINT, shape.heads),
        ("llama.attention.head_count_kv", _UINT, shape.heads),
        ("llama.attention.layer_norm_rms_epsilon", _FLOAT, 1e-5),
        ("llama.rope.dimension_count", _UINT, size),
        ("llama.vocab_size", _UINT, len(tokens)),
        ("general.file_type", _UINT, 1),
        ("tokenizer.ggml.model", _TEXT, "llama"),
        ("tokenizer.ggml.tokens", _ARRAY, (_TEXT, tokens)),
        ("tokenizer.ggml.scores", _ARRAY, (_FLOAT, [0.0] * len(tokens))),
        ("tokenizer.ggml.token_type", _ARRAY, (_INT, types)),
        ("tokenizer.ggml.bos_token_id", _UINT, 1),
        ("tokenizer.ggml.eos_token_id", _UINT, 2),
        ("tokenizer.ggml.unknown_token_id", _UINT, 0),
        (
            "tokenizer.chat_template",
            _TEXT,
            "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}",
        ),
    ]


def _tensors(shape: Shape, words: int, types: list[int]) -> dict[str, Any]:
    random = np.random.default_rng(shape.seed)
    hidden, inner = shape.hidden, shape.inner

    def matrix(rows: int, columns: int) -> Any:
        values = random.standard_normal((rows, columns), dtype=np.float32)
        return (values / columns**0.5).astype(np.float16)

    ones = np.ones(hidden, np.float32)
    head = matrix(words, hidden) * np.float16(8)
    head[[kind != _NORMAL for kind in types]] = 0  # their logits are 0, so answers are printable
    found = {"token_embd.weight": matrix(words, hidden) * np.float16(8), "output_norm.weight": ones,
             "output.weight": head}  # fmt: skip
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        found[f"{at}attn_norm.weight"] = found[f"{at}ffn_norm.weight"] = ones
        for part in ("q", "k", "v", "output"):
            found[f"{at}attn_{part}.weight"] = matrix(hidden, hidden)
        found[f"{at}ffn_gate.weight"] = matrix(inner, hidden)
        found[f"{at}ffn_up.weight"] = matrix(inner, hidden)
        found[f"{at}ffn_down.weight"] = matrix(hidden, inner)
    return found


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind: int, value: Any) -> bytes:
    if kind == _TEXT:
        return _text(value)
    if kind == _ARRAY:
        inner, items = value
        head = struct.pack("<IQ", inner, len(items))
        return head + b"".join(_value(inner, item) for item in items)
    return struct.pack({_UINT: "<I", _INT: "<i", _FLOAT: "<f"}[kind], value)
