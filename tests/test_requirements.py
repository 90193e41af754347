"""Dependencies are pinned by hash, torch included, and audited for known vulnerabilities."""

import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"


def script(name: str) -> ModuleType:
    """Import a CI script as a module."""
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(ROOT / ".ci" / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["runtime", "dev", "torch", "torch-needs", "cuda", "audit"])
def test_every_pin_has_hashes(name: str) -> None:
    text = (FOLDER / f"{name}.lock").read_text()
    pins = re.split(r"\n(?=\S)", text.strip())
    assert pins and all("==" in pin and "--hash=sha256:" in pin for pin in pins)


def test_torch_is_the_one_of_the_project_in_all_known_builds() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (wanted,) = settings["project"]["optional-dependencies"]["torch"]
    (pin,) = re.findall(rf"^{re.escape(wanted)} \\\n(?:    --hash=\S+(?: \\)?\n?)+",
                        (FOLDER / "torch.lock").read_text(), re.MULTILINE)  # fmt: skip
    hashes = set(re.findall(r"--hash=\S+", pin))
    builds = set(re.findall(r"^--hash=\S+", (FOLDER / "torch.builds").read_text(), re.MULTILINE))
    assert builds and builds < hashes and len(hashes) > 20


def test_nothing_is_installed_unchecked() -> None:
    installs = [
        line
        for name in ("Makefile", ".ci/wheel-demo", ".ci/install-torch")
        for line in (ROOT / name).read_text().splitlines()
        if any(call in line for call in ("pip install", "{pip[@]}", "{shown[@]}", "$(PIP)"))
        and not line.startswith("PIP ")
    ]
    assert len(installs) >= 8
    for line in installs:
        checked = "--require-hashes" in line or "{checked[@]}" in line
        own = line.endswith(("--no-deps -e .", '--no-deps "$wheel"'))
        assert checked or own or " download " in line, line


def wheel_of_another_build(folder: Path) -> None:
    with zipfile.ZipFile(folder / "torch-2.13.0-py3-none-any.whl", "w") as wheel:
        about = "torch-2.13.0.dist-info"
        wheel.writestr("torch/__init__.py", "raise SystemExit('not the one')")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
                                         "Tag: py3-none-any\n")  # fmt: skip
        wheel.writestr(f"{about}/RECORD", "")


def test_another_build_of_torch_is_refused_with_a_hint(tmp_path: Path) -> None:
    wheel_of_another_build(tmp_path)
    (tmp_path / ".ci").mkdir()
    (tmp_path / "requirements").mkdir()
    for name in ("install-torch", "progress"):
        (tmp_path / ".ci" / name).write_text((ROOT / ".ci" / name).read_text())
    for name in ("torch.in", "torch.lock"):
        (tmp_path / "requirements" / name).write_text((FOLDER / name).read_text())
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull,
                "PIP_TARGET": str(tmp_path / "into")}  # fmt: skip
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    done = subprocess.run(
        ["bash", str(tmp_path / ".ci" / "install-torch"), sys.executable],
        check=False, capture_output=True, text=True, env=kept | settings, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert "error: torch-2.13.0-py3-none-any.whl is not a build of torch that" in done.stderr
    assert "hint:" in done.stderr and "requirements/torch.builds" in done.stderr
    assert "2 of 3: torch: done after" in done.stderr
    assert not (tmp_path / "into" / "torch").exists()


def test_pips_lines_become_one_of_progress(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = script("progress")
    assert progress.described("Collecting numpy==2.1.0 (from -r x.lock (line 3))") == (
        "looking for numpy==2.1.0"
    )
    assert progress.described("Downloading https://x.org/a/torch-2.whl (203.5 MB)") == (
        "downloading torch-2.whl (203.5 MB)"
    )
    for line in (
        "Building wheels for collected packages: x",
        "Building editable for x (pyproject.toml): started",
    ):
        assert progress.described(line) == "building x"
    assert progress.described("Requirement already satisfied: x") == ""
    assert progress.described("Installing collected packages: a, b") == "installing them"
    pip = "print('Collecting a'); print('Collecting b'); raise SystemExit('no b')"
    monkeypatch.setattr(progress, "QUIET", 0.0)
    assert progress.run("1 of 3: tools", [sys.executable, "-c", pip]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert (
        "2 packages, 0 s: looking for b" in err
        and "no b" in err
        and "1 of 3: tools: failed after 0 s" in err
    )


FINE = {"name": "trio", "version": "0.35.0", "vulns": []}
FLAWED = {"name": "h2", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
SKIPPED = {"name": "rich", "skip_reason": "Dependency not found on PyPI"}


def answer(*dependencies: object) -> str:
    return json.dumps({"dependencies": dependencies, "fixes": []})


def test_an_audit_without_findings_counts_the_packages() -> None:
    code, told = script("audit").judge([answer(FINE), answer(FINE)])
    assert (code, told) == (0, ["no known vulnerabilities in 1 packages"])


def test_an_audit_names_each_vulnerability_and_its_fix() -> None:
    code, told = script("audit").judge([answer(FINE), answer(FLAWED)])
    assert code == 1 and told[0] == "h2 1: PYSEC-1, fixed in 2"


@pytest.mark.parametrize("answers", [[""], ["{}"], [answer()], [answer(FINE, SKIPPED)]])
def test_an_audit_without_all_answers_fails(answers: list[str]) -> None:
    """pip-audit itself exits with 0 for a package that the service does not know."""
    code, told = script("audit").judge(answers)
    assert code == 2
    assert told[-2].startswith("error: no answer from the advisory service")
    assert told[-1].startswith("hint: ")
