"""The clock with which computing is measured."""

import time

import torch


def clock(device: str = "cpu") -> float:
    """Return a time in seconds after all work on the device is done.

    On the CPU it is the time of this process, which other programs do not lengthen, divided by the
    number of threads.
    """
    if device == "cpu":
        threads: int = torch.get_num_threads()
        return time.process_time() / threads
    torch.accelerator.synchronize(device)
    return time.perf_counter()
