"""Time and memory of calls, some shorter than what Python needs to launch them.

A filler keeps the GPU busy while the calls are queued behind it. What lies between two
events is then the work of the GPU alone. The time with Python is measured beside it, of one
call until its end, and of many in a row, as in training.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from everyformer.train.throughput import wait_for

IN_A_ROW, QUEUED = 5, 20
LONG = 20.0
"""Milliseconds from which on calls are few in a row: what Python takes is little then."""

FILLER_SIZE, FILLERS = 8192, 12


def gpu_milliseconds(
    call: Callable[[], Any], rounds: int, in_a_row: int = IN_A_ROW
) -> float:
    """Median time that the GPU works on a call, of some in a row in each round."""
    side = torch.ones(FILLER_SIZE, FILLER_SIZE, dtype=torch.bfloat16, device="cuda")
    found: list[float] = []
    for _ in range(rounds):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(in_a_row + 1)]
        for _ in range(FILLERS):
            torch.mm(side, side)
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        torch.cuda.synchronize()
        found += [a.elapsed_time(b) for a, b in itertools.pairwise(events)]
    return statistics.median(found)


def wall_milliseconds(call: Callable[[], Any], rounds: int) -> float:
    """Median time of a call with all that Python does, until the GPU has finished."""
    return 1e3 * update_seconds(call, torch.device("cuda"), 1, 1, rounds)


def queued_milliseconds(call: Callable[[], Any], rounds: int) -> float:
    """Median time of one of many calls in a row: the longer of Python's and the GPU's."""
    long = wall_milliseconds(call, 1) > LONG
    count = 2 if long else QUEUED
    return 1e3 * update_seconds(call, torch.device("cuda"), count, count, rounds)


def update_seconds(
    step: Callable[[], Any], device: torch.device, warm_up: int, count: int, rounds: int
) -> float:
    """Median time of an update among `count` in a row, after some that do not count."""
    for _ in range(warm_up):
        step()
    found: list[float] = []
    for _ in range(rounds):
        wait_for(device)
        started = time.perf_counter()
        for _ in range(count):
            step()
        wait_for(device)
        found.append((time.perf_counter() - started) / count)
    return statistics.median(found)


def kernel_milliseconds(call: Callable[[], Any]) -> float:
    """What the kernels of one call take in all: below its wall clock, the GPU waits."""
    return sum(kernels_of(call).values())


def kernels_of(call: Callable[[], Any]) -> dict[str, float]:
    """The milliseconds of all kernels of one call, by their names; the longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        call()
        torch.cuda.synchronize()
    rows: list[Any] = [x for x in found.key_averages() if "CUDA" in str(x.device_type)]
    times = {row.key: row.self_device_time_total / 1e3 for row in rows}
    return dict(sorted(times.items(), key=lambda entry: -entry[1]))


def cpu_milliseconds(call: Callable[[], Any], rounds: int) -> float:
    """Median time that one thread of this process works on a call; others do not count."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found: list[float] = []
    for _ in range(rounds + 1):  # the first does not count
        start = time.process_time()
        call()
        found.append(1e3 * (time.process_time() - start))
    torch.set_num_threads(before)
    return statistics.median(found[1:])


def forget_memory(device: torch.device) -> None:
    """Give back what is not used, and count the most that is in use anew."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def gpu_bytes(call: Callable[[], Any]) -> int:
    """Memory that a call takes beyond what is there."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of log value against log size, by least squares."""
    x, y = (torch.tensor(v, dtype=torch.float64).log() for v in (sizes, values))
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())
