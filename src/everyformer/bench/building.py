"""How long building, saving and loading take."""

import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from everyformer.bench.results import environment, median_seconds
from everyformer.bench.tables import table_of
from everyformer.construct.pipeline import Built, construct
from everyformer.errors import EveryformerError
from everyformer.model.network import load
from everyformer.progress import Progress, no_progress
from everyformer.targets import soft_attention
from everyformer.targets.box import Grid

SIZES = ((2, 1, 64), (3, 1, 16), (2, 2, 8), (3, 1, 32), (2, 1, 256), (3, 2, 8))
QUICK_SIZES = SIZES[:2]


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """Medians of three for every size; every network is checked on its table first."""
    rows: list[dict[str, Any]] = []
    sizes = QUICK_SIZES if quick else SIZES
    for done, (n, d, K) in enumerate(sizes):
        progress(f"build n={n}, d={d}, K={K}", done, len(sizes))
        rows.append(_measure(n, d, K))
    return {"theme": "building", "environment": environment(), "rows": rows}


def _measure(n: int, d: int, K: int) -> dict[str, Any]:
    target = soft_attention(n, d)
    built = construct(target, grid=K)
    gap = table_gap(built, Grid(K, n, target.domain))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.safetensors"
        timings = {
            "build_s": median_seconds(lambda: construct(target, grid=K), 3),
            "save_s": median_seconds(lambda: built.network.save(path), 3),
            "load_s": median_seconds(lambda: load(path), 3),
        }
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "n": n,
        "d": d,
        "K": K,
        "blocks": built.cost.blocks,
        **timings,
        "process_peak_bytes_so_far": kilobytes * unit,
        "table_gap_sampled": gap,
    }


def table_gap(built: Built, grid: Grid, cells: int = 64) -> float:
    """Largest distance of the network from the target at the centres of random cells.

    Raises:
        EveryformerError: If it is above 1e-9: nothing wrong is timed.
    """
    columns = grid.distinct_sets()
    rows = np.random.default_rng(0).integers(len(columns), size=cells)
    x = grid.centres(columns[rows])
    gap = float(np.abs(built.network(x) - built.target(x)).max())
    if not gap <= 1e-9:
        msg = f"The network misses its table by {gap:g}; it is not timed."
        raise EveryformerError(msg)
    return gap


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal."""
    columns = {
        "n, d, K": "{n}, {d}, {K}",
        "blocks": "{blocks:,}",
        "build s": "{build_s:.3f}",
        "save s": "{save_s:.3f}",
        "load s": "{load_s:.3f}",
        "peak MiB": "{process_peak_bytes_so_far:MiB.0f}",
    }
    return table_of("Building, medians of 3", report["rows"], columns)
