"""The golden tables and the comparison with them."""

import json
import subprocess
import sys

import pytest
import trio

from shoal.netsim.nat.probes import catalogue as probes
from shoal.netsim.netns import calibrate as this
from shoal.netsim.netns import nft
from shoal.netsim.netns.calibrate import ABSENT, COMMAND, GOLDEN, Mismatch, compare, golden
from shoal.netsim.netns.lab import KernelLab
from shoal.netsim.netns.namespaces import KernelRefused


def test_equal_tables_have_no_differences() -> None:
    assert compare(golden(), golden()) == []


def test_a_difference_names_kind_probe_and_both_answers() -> None:
    [found] = compare({"nat": {"p": "APDF", "q": 1}}, {"nat": {"p": "EIF", "q": 1}})
    assert found == Mismatch("nat", "p", "APDF", "EIF")
    assert str(found) == "nat: p is 'APDF', in the kernel 'EIF'"


def test_one_is_not_true_and_nothing_is_not_false() -> None:
    found = compare({"nat": {"a": 1, "b": None}}, {"nat": {"a": True, "b": False}})
    assert [difference.probe for difference in found] == ["a", "b"]


def test_an_answer_that_one_side_lacks_is_a_difference() -> None:
    found = compare({"nat": {"a": 1}, "new": {"c": 1}}, {"nat": {"b": 2}, "other": {"z": 1}})
    assert [(d.kind, d.probe, d.simulated, d.golden) for d in found] == [
        ("nat", "a", 1, ABSENT), ("nat", "b", ABSENT, 2), ("new", "c", 1, ABSENT),
    ]  # fmt: skip


def test_the_golden_table_has_every_kind_and_says_where_it_comes_from() -> None:
    document = json.loads(GOLDEN.read_text())
    assert list(document["kinds"]) == list(nft.KINDS)
    assert document["command"] == COMMAND
    assert document["kernel"].startswith("Linux ")
    assert document["timers"] == probes.TIMERS
    answered = {frozenset(answers) for answers in document["kinds"].values()}
    assert len(answered) == 1  # all kinds had the same probes


@pytest.mark.parametrize("kind", nft.KINDS)
def test_the_simulated_nat_answers_as_the_kernel_did(kind: str) -> None:
    assert [str(item) for item in compare(this.simulate([kind]), golden())] == []


def test_a_nat_that_is_another_answers_otherwise() -> None:
    """The twin: the table tells kinds apart, also the most similar ones."""
    simulated = {"linux-accept": this.simulate(["linux-reject"])["linux-reject"]}
    differences = compare(simulated, golden())
    assert "udp.race.port_kept" in [difference.probe for difference in differences]


def test_without_a_kernel_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this, "available", lambda: "the kernel backend needs root")
    with pytest.raises(KernelRefused, match="needs root"):
        this.calibrate(["linux-drop"])


def test_the_command_writes_the_requested_kinds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, kernel: None
) -> None:
    assert isinstance(tmp_path, type(GOLDEN))
    path = tmp_path / "linux.json"
    path.write_text(GOLDEN.read_text())
    this.write({"linux-drop": {"p": 1}}, path)
    kinds = json.loads(path.read_text())["kinds"]
    assert kinds["linux-drop"] == {"p": 1}
    assert kinds["linux-accept"] == golden()["linux-accept"]  # the others are kept


def probed(kind: str, *names: str) -> probes.Found:
    with KernelLab(kind) as lab:
        found: probes.Found = trio.run(probes.run, lab, names)
        return found


def test_this_kernel_answers_as_the_table_says(kernel: None) -> None:
    found = probed("linux-accept", "mapping", "race")
    assert compare({"linux-accept": found | rest("linux-accept", found)}, golden()) == []


def test_another_kind_answers_otherwise(kernel: None) -> None:
    """The twin: the probes tell kinds apart."""
    found = probed("linux-drop", "mapping", "race")
    differences = compare({"linux-accept": found | rest("linux-accept", found)}, golden())
    assert [difference.probe for difference in differences] == ["udp.race.port_kept"]


def rest(kind: str, found: probes.Found) -> probes.Found:
    """Return the stored results of the probes that were not run now."""
    return {probe: answer for probe, answer in golden()[kind].items() if probe not in found}


@pytest.mark.ci
def test_the_stored_table_is_this_kernels(kernel: None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shoal.netsim.netns.calibrate"], capture_output=True, text=True
    )
    assert done.stdout == f"0 differences in {len(nft.KINDS)} kinds\n", done.stdout + done.stderr
