"""Two daemons with a slow link between them: the second long prompt travels packed, and answers
the same."""

import pytest
import trio

from shoal.netsim.daemons.daemon import Daemon
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.tasks.inference.chain import Chains

SLOW, FAST = 200e3, 50e6  # byte/s
PROMPT = "and it came to pass in those days that " * 90


def declared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record how the hidden states of each request travel."""
    found: list[str] = []
    choose = Chains.activations

    def recording(chains: Chains, model: object, run: object) -> str:
        found.append(choose(chains, model, run))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(Chains, "activations", recording)
    return found


@pytest.mark.parametrize("rate", [SLOW, FAST])
def test_a_slow_link_carries_packed_states(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    found = declared(monkeypatch)
    world = World(1)
    hosts = [world.host(name, link=LinkSpec(PipeSpec(0.01, rate=rate))) for name in "ab"]
    took: list[float] = []

    async def main() -> None:
        first = await hosts[0].start(Daemon(model="tiny", layers=(0, 3)))
        await first.serving()
        second = await hosts[1].start(Daemon(bootstrap=[first], model="tiny", layers=(3, 6)))
        await second.serving()
        await first.until(lambda status: status["peers"] == 1)
        await trio.sleep(10)  # until the first one knows what the second one serves
        texts = []
        for number in range(3):
            began = trio.current_time()
            # The prompt begins differently, so that no stage has it cached.
            answer = await first.generate(f"{number} {PROMPT}", raw=True, max_tokens=4)
            took.append(trio.current_time() - began)
            texts.append(answer["text"])
        again = await first.generate(f"0 {PROMPT}", raw=True, max_tokens=4)
        assert again["text"] == texts[0]  # exact at first, packed now

    world.run(main)
    if rate == SLOW:
        assert found == ["exact", "int8", "int8", "int8"]
        assert took[2] < 0.6 * took[0]
    else:
        assert found == ["exact"] * 4
