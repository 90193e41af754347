"""The recipes: their text, and that the kernel takes it."""

import pytest

from shoal.netsim.nat.probes import catalogue as probes
from shoal.netsim.netns import nft
from shoal.netsim.netns.namespaces import KernelRefused, Namespaces

SITE = nft.RecipeInputs("198.51.100.1", "192.168.1.0/24", 7.5)


@pytest.mark.parametrize("kind", nft.KINDS)
def test_a_recipe_has_a_line_for_each_statement(kind: str) -> None:
    rules = nft.rules(kind, SITE)
    assert rules.count("{") == rules.count("}")
    for line in rules.splitlines():
        assert line.strip(), "an empty line"
        if line.startswith("type ") and " hook " in line:
            assert line.endswith("; policy accept;")
        else:
            assert ";" not in line
        if "{" in line and not line.endswith("{"):
            assert "update @" in line  # the one statement with braces of its own


def test_every_kind_with_a_twin_in_the_kernel_has_a_recipe() -> None:
    assert list(nft.KINDS) == list(probes.KINDS)


def test_kinds_differ_as_their_names_say() -> None:
    rules = {kind: nft.rules(kind, SITE) for kind in nft.KINDS}
    assert "masquerade fully-random" in rules["linux-fully-random"]
    assert "snat to 198.51.100.1 persistent" in rules["linux-persistent"]
    assert "reject with tcp reset" in rules["linux-reject"]
    assert len(set(rules.values())) == len(rules)
    assert "timeout 7500ms" in rules["full-cone"]


def test_an_unknown_kind_is_refused_with_those_known() -> None:
    with pytest.raises(ValueError, match=r"no gateway of kind `cisco` .it has linux-drop, "):
        nft.rules("cisco", SITE)


def test_the_kernel_takes_every_recipe_and_not_a_broken_one(kernel: None) -> None:
    with Namespaces() as spaces:
        space = spaces.add("gate")
        for kind in nft.KINDS:
            space.nft("flush ruleset\n" + nft.rules(kind, SITE))
            assert "chain postrouting" in space.read(["nft", "list", "ruleset"])
        with pytest.raises(KernelRefused):
            space.nft(nft.rules("linux-drop", SITE).replace("masquerade", "masquerate"))
