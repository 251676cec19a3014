"""Result files that say where and when they were made."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from everyformer.provenance import commit, cpu_name, versions


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """Median wall-clock time of a call, after one that does not count."""
    work()
    return statistics.median(seconds_of(work) for _ in range(repeats))


def interleaved_medians(
    calls: dict[int, Callable[[], object]], rounds: int
) -> dict[int, float]:
    """Medians of several calls that take turns, so that a slow minute hits all alike."""
    times: dict[int, list[float]] = {size: [] for size in calls}
    for work in calls.values():
        work()
    for _ in range(rounds):
        for size, work in calls.items():
            times[size].append(seconds_of(work))
    return {size: statistics.median(found) for size, found in times.items()}


def seconds_of(work: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def environment() -> dict[str, Any]:
    """Machine, versions, commit and date."""
    names = (
        "everyformer", "numpy", "numba", "torch", "triton", "transformers", "jax",
        "cupy-cuda13x",
    )  # fmt: skip
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "gpu": gpu_name(),
        "python": platform.python_version(),
        "versions": versions(*names),
    }


def gpu_name() -> str | None:
    """The name of the first CUDA device, or None."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def write(folder: Path, theme: str, report: dict[str, Any]) -> Path:
    """Write `<theme>_<gpu or cpu>_<date>.json`, whole or not at all."""
    where = (report["environment"]["gpu"] or "cpu").lower().replace(" ", "-")
    day = report["environment"]["date"][:10]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{theme}_{where}_{day}.json"
    temporary = path.with_name(f".{path.name}")
    try:
        temporary.write_text(json.dumps(report, indent=2) + "\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
