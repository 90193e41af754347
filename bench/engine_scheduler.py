"""CPU time of planning one step for 256 sessions of 16 gateways with 4 users each, without the
computation.

Each step plans, and then tells the scheduler the next row of every chosen session, as the engine's
core does. Two loads: all sessions generate text and fit into a step, and only a part of them fits
while four prompts wait. `value` is the larger median of a step in microseconds of CPU; goal 300.
`over_yardstick` divides it by the time of one heap operation of Python, to compare machines.
"""

import argparse
import heapq
import json
import sys
import time
from statistics import median
from typing import Final

from shoal.tasks.engine.scheduler import Scheduler
from shoal.tasks.engine.scheduling.costs import StepCosts

MEASURES = ("tasks/engine/scheduler.py", "tasks/engine/scheduling")

GOAL_US: Final = 300.0
SESSIONS: Final = 256
GATEWAYS: Final = 16
USERS: Final = 4  # of each gateway
LOADS: Final = {
    "all": StepCosts(0.1, 1e-6, 0.0),
    "some": StepCosts(0.1, 0.008, 3e-6),
}


def step_us(costs: StepCosts, prompts: int, steps: int) -> float:
    """Return the median CPU time of a step in microseconds."""
    scheduler = Scheduler()
    for number in range(SESSIONS):
        user = b"user %d" % (number // GATEWAYS % USERS)
        share = scheduler.join(f"gateway {number % GATEWAYS}", costs, user=user)
        decode = number >= prompts
        scheduler.want(share, 1 if decode else 4000, 100 if decode else 0, decode=decode)
    times = []
    for _ in range(steps):
        began = time.thread_time_ns()
        for share, rows in scheduler.plan():
            left = share.rows if share.decode else max(share.rows - rows, 16)
            scheduler.want(share, left, share.position + rows, decode=share.decode)
        times.append((time.thread_time_ns() - began) / 1000)
        for share in list(scheduler._ready):  # positions may not grow without end
            share.position %= 4096
    return median(times)


def yardstick_us() -> float:
    """Return the median CPU time of pushing and popping one item of a heap of 256."""
    heap = list(range(SESSIONS))
    times = []
    for _ in range(200):
        began = time.thread_time_ns()
        for number in range(100):
            heapq.heappush(heap, number)
            heapq.heappop(heap)
        times.append((time.thread_time_ns() - began) / 1000 / 100)
    return median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="200 steps")
    args = parser.parse_args()
    steps = 200 if args.quick else 2000
    found = {
        "all": step_us(LOADS["all"], 0, steps),
        "some": step_us(LOADS["some"], 4, steps),
    }
    value = max(found.values())
    result = {
        "name": "engine_scheduler",
        "value": round(value, 1),
        "goal": GOAL_US,
        "ok": value <= GOAL_US,
        "unit": "us of CPU per step",
        "us": {name: round(each, 1) for name, each in found.items()},
        "over_yardstick": round(value / yardstick_us(), 1),
        "sessions": SESSIONS,
        "steps": steps,
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
