"""Time and memory of building, saving and loading; writes a result file.

Run with `make bench`. Every network is checked against its table on random cells first.
"""

import json
import platform
import resource
import statistics
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import everyformer as ef
from everyformer.targets import soft_attention

SIZES = [(2, 1, 64), (3, 1, 16), (2, 2, 8), (3, 1, 32), (2, 1, 256), (3, 2, 8)]
REPEATS = 3
RESULTS = Path(__file__).parent / "results"


def gate(built: ef.Built) -> float:
    """Largest distance from the table on eight cells; must be below 1e-9."""
    rows = np.random.default_rng(0).integers(len(built.table.columns), size=8)
    x = built.plan.constants.grid.centres(built.table.columns[rows])
    gap = float(np.abs(built.network(x) - built.table.values[rows]).max())
    if gap > 1e-9:
        msg = f"{built.plan.target}: the network misses its table by {gap}."
        raise SystemExit(msg)
    return gap


def measure(n: int, d: int, K: int) -> dict[str, float | int]:
    """Medians of building, saving and loading one network."""
    target = soft_attention(n, d)
    build, save, load = [], [], []
    built = ef.construct(target, grid=K)
    gap = gate(built)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.safetensors"
        for _ in range(REPEATS):
            start = time.perf_counter()
            built = ef.construct(target, grid=K)
            build.append(time.perf_counter() - start)
            start = time.perf_counter()
            built.network.save(path)
            save.append(time.perf_counter() - start)
            start = time.perf_counter()
            ef.load(path)
            load.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "n": n,
        "d": d,
        "K": K,
        "blocks": built.cost.blocks,
        "build_s": statistics.median(build),
        "save_s": statistics.median(save),
        "load_s": statistics.median(load),
        "process_peak_bytes_so_far": peak,
        "table_gap_sampled": gap,
    }


def main() -> None:
    """Measure all sizes, print a table, write a JSON file."""
    rows = [measure(*size) for size in SIZES]
    table = Table(title=f"Building, median of {REPEATS}")
    for name in ("n, d, K", "blocks", "build s", "save s", "load s", "peak MiB"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            f"{row['n']}, {row['d']}, {row['K']}",
            f"{row['blocks']:,}",
            f"{row['build_s']:.3f}",
            f"{row['save_s']:.3f}",
            f"{row['load_s']:.3f}",
            f"{row['process_peak_bytes_so_far'] / 2**20:.0f}",
        )
    Console().print(table)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    now = datetime.now(UTC)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"building_cpu_{now:%Y-%m-%d}.json"
    path.write_text(
        json.dumps(
            {
                "date": now.isoformat(timespec="seconds"),
                "commit": commit,
                "machine": platform.processor() or platform.machine(),
                "python": platform.python_version(),
                "numpy": np.__version__,
                "repeats": REPEATS,
                "rows": rows,
            },
            indent=2,
        )
        + "\n"
    )
    Console().print(f"written: {path.name}")


if __name__ == "__main__":
    main()
