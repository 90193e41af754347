"""Counting a trace: the same digest as without, and the sums of its records."""

from shoal.netsim.trace.trace import RECEIVED, SENT, CountingTrace, Trace

A, B = ("11.0.1.1", 5), ("11.0.2.1", 7)


def test_sums_by_host_and_reason() -> None:
    ledger, plain = CountingTrace(), Trace()
    for trace in (ledger, plain):
        for number in range(5000):
            trace.add((number / 10, SENT, "a", 17, A, B, 100, "task"))
            what = RECEIVED if number % 5 else "lost"
            trace.add((number / 10 + 1, what, "b", 17, A, B, 100, "task"))
    assert ledger.counters("a") == {
        "sent": 5000, "received": 0, "dropped": 0, "bytes_sent": 500_000, "bytes_received": 0,
    }  # fmt: skip
    assert ledger.counters("b")["received"] == 4000 and ledger.counters("b")["dropped"] == 1000
    assert ledger.drops == {"lost": 1000}
    assert ledger.counters("nobody")["sent"] == 0
    assert ledger.digest == plain.digest and ledger.count == 10_000
