"""Result files that say where and when they were made."""

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any


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
    names = ("everyformer", "numpy", "numba", "torch", "triton", "jax", "cupy-cuda13x")
    versions: dict[str, str] = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": gpu_name(),
        "python": platform.python_version(),
        "versions": versions,
    }


def gpu_name() -> str | None:
    """The name of the first CUDA device, or None."""
    torch = import_module("torch")
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def _commit() -> str | None:
    """The commit of this checkout; EVERYFORMER_COMMIT says it where git cannot."""
    if os.environ.get("EVERYFORMER_COMMIT"):
        return os.environ["EVERYFORMER_COMMIT"]
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--verify", "--quiet", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parent,
        )
    except OSError:
        return None
    return found.stdout.strip() or None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


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
