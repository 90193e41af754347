"""One peer of hivemind for `tuning_average.py`; run by the Python of an environment that has it.

Arguments: the number of values, the number of peers, this peer's number, the compression, and the
address of the first peer ("" for the first one itself). Prints its addresses. Three lines of its
input are one round: after the first it makes its values, after the second it averages them and
replies with the seconds that it took, and after the third it replies with the largest difference to
the right mean.
"""

import sys
import time

import torch
from hivemind import DHT
from hivemind.averaging import DecentralizedAverager
from hivemind.compression import Float16Compression, NoCompression, Uniform8BitQuantization

COMPRESSION = {
    "float32": NoCompression,
    "float16": Float16Compression,
    "int8": Uniform8BitQuantization,
}


def main() -> None:
    values, peers, number, compression, first = (
        int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    )  # fmt: skip
    torch.set_num_threads(1)
    dht = DHT(
        initial_peers=[first] if first else None,
        host_maddrs=["/ip4/127.0.0.1/tcp/0"],
        start=True,
    )
    print(str(dht.get_visible_maddrs()[0]), flush=True)
    averager = DecentralizedAverager(
        [torch.zeros(values)],
        dht,
        prefix="bench",
        target_group_size=peers,
        min_group_size=peers,
        compression=COMPRESSION[compression](),
        min_matchmaking_time=2.0,
        request_timeout=2.0,
        start=True,
    )
    sys.stdin.readline()
    print("ready", flush=True)
    for _ in sys.stdin:
        with averager.get_tensors() as tensors:
            tensors[0].fill_(float(number))
        print("made", flush=True)
        sys.stdin.readline()
        began = time.perf_counter()
        group = averager.step(timeout=60, allow_retries=True)
        print(time.perf_counter() - began, flush=True)
        sys.stdin.readline()
        with averager.get_tensors() as tensors:
            off = float((tensors[0] - (peers - 1) / 2).abs().max())
        print(off if group else "inf", flush=True)
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    main()
