"""What `verify` expects to cost, and what it costs: honest networks of every method."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from everyformer.bench.constructions import wave
from everyformer.bench.hostile import untraceable
from everyformer.bench.methods import averaging, partition, shifts
from everyformer.bench.results import environment
from everyformer.bench.tables import table_of
from everyformer.construct.pipeline import Built, construct
from everyformer.errors import EveryformerError
from everyformer.progress import Progress, no_progress
from everyformer.targets import centring, prefix_mean, reverse, soft_attention, sort
from everyformer.targets.target import Target

CHILD = """
import dataclasses, json, sys, time
from pathlib import Path
import everyformer as ef
from everyformer.bench.hostile import peak_memory
from everyformer.certify import prove, work

seen = []

def remember(examined, limits):
    seen.append(examined)

prove.check_work = remember
Path("/proc/self/clear_refs").write_text("5")
before, cpu = peak_memory(), time.process_time()
verdict = ef.verify(sys.argv[1]).verdict.name
row = {"verdict": verdict, "cpu_seconds": time.process_time() - cpu}
row |= {"bytes": peak_memory() - before, "examined": dataclasses.asdict(seen[-1])}
row |= {"estimated_seconds": seen[-1].seconds, "estimated_bytes": seen[-1].memory}
print(json.dumps(row))
"""


def long_program(steps: int) -> Target:
    """A function of many lines: y <- 0.999 y + sin(y) / 1000, again and again."""

    def function(x: np.ndarray) -> np.ndarray:
        for _ in range(steps):
            x = 0.999 * x + 0.001 * np.sin(x)
        return x

    return Target(function, 2, 1, name=f"{steps} steps")


NETWORKS: dict[str, Callable[[], Built]] = {
    "Theorem 2, soft_attention(2), K = 128": lambda: construct(soft_attention(2), grid=128),
    "Theorem 2, centring(3), K = 32": lambda: construct(centring(3), grid=32),
    "Theorem 3, reverse(2), K = 64": lambda: construct(reverse(2), grid=64),
    "Theorem 3, sort(3), K = 8": lambda: construct(sort(3), grid=8),
    "exact, reverse(2), K = 16": lambda: construct(
        reverse(2), grid=16, method=shifts.EXACT
    ),
    "URPE, reverse(2), K = 32": lambda: construct(reverse(2), grid=32, method=shifts.URPE),
    "sparse, prefix_mean(3), K = 4": lambda: construct(
        prefix_mean(3), grid=4, method=shifts.STAR
    ),
    "averaging, reverse(2), K = 128": lambda: construct(
        reverse(2), grid=128, method=averaging.WIDE
    ),
    "averaging, soft_attention(3), K = 16": lambda: construct(
        soft_attention(3), grid=16, method=averaging.WIDE
    ),
    "narrow, reverse(2), K = 16": lambda: construct(
        reverse(2), grid=16, method=averaging.NARROW
    ),
    "two-step, reverse(2), K = 32": lambda: construct(
        reverse(2), grid=32, method=averaging.TWO_STEP
    ),
    "partition, reverse(2), K = 16": lambda: construct(
        reverse(2), grid=16, method=partition.PLAIN
    ),
    "partition, soft_attention(2), K = 16": lambda: construct(
        soft_attention(2), grid=16, method=partition.PLAIN
    ),
    "partition, wave, K = 32": lambda: construct(wave(), grid=32, method=partition.PLAIN),
    "partition, soft_attention(2), K = 128": lambda: construct(
        soft_attention(2), grid=128, method=partition.PLAIN
    ),
    "declared, K = 64": lambda: construct(Target(untraceable, 2, 1, lipschitz=1), grid=64),
    "24,000 lines, K = 4": lambda: construct(long_program(3000), grid=4),
}


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """Verify each network in a process of its own, beside the estimate."""
    chosen = list(NETWORKS.items())[4:5] if quick else list(NETWORKS.items())
    rows: list[dict[str, Any]] = []
    for done, (name, build) in enumerate(chosen):
        progress("honest networks", done, len(chosen))
        with tempfile.TemporaryDirectory() as folder:
            build().save(Path(folder))
            rows.append({"network": name, **_measure(folder)})
    return {"theme": "work", "environment": environment(), "rows": rows}


def _measure(folder: str) -> dict[str, Any]:
    command = [sys.executable, "-c", CHILD, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EveryformerError(f"A network could not be measured: {done.stderr}")
    return json.loads(done.stdout)


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal."""
    columns = {
        "network": "{network}",
        "s expected": "{estimated_seconds:.2f}",
        "s of CPU": "{cpu_seconds:.2f}",
        "MiB expected": "{estimated_bytes:MiB.0f}",
        "MiB": "{bytes:MiB.0f}",
    }
    title = "What verify expects, and what it takes"
    return table_of(title, report["rows"], columns, left=["network"])
