"""How fast a network of hundreds of thousands of blocks runs, and against what.

First the gate: the literal executor equals the reference and the table, the folded one
equals the literal one. Then medians of one run: eager torch blocks, torch.compile, JAX
lax.scan where it is installed, literal, folded, and the GPU where there is one; the time to
read the weights once from memory is measured beside them.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from everyformer import figures
from everyformer.bench.building import table_gap
from everyformer.bench.constructions import fitted_order
from everyformer.bench.contenders import compiled_torch, eager_torch, jax_scan
from everyformer.bench.results import (
    environment,
    gpu_name,
    interleaved_medians,
    median_seconds,
    seconds_of,
)
from everyformer.construct.pipeline import Built, construct
from everyformer.errors import EveryformerError
from everyformer.model.network import Network
from everyformer.progress import Progress, no_progress
from everyformer.targets import soft_attention
from everyformer.targets.box import Grid

BATCH = 1024
FOLDED_SEQUENCES = 1_000_000
GPU_BATCH = 4096
GPU_COPIES = 4
"""Four copies of the 250,075 blocks one after the other: a network of a million blocks."""


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """Gate, then time. `quick` takes a small network and few repeats."""
    n, d, K = (3, 1, 8) if quick else (3, 2, 8)
    progress("build", 0, 6)
    built = construct(soft_attention(n, d), grid=K)
    progress("check", 1, 6)
    gate = _gate(built, Grid(K, n, built.target.domain), 1000 if quick else 100_000)
    repeats = 3 if quick else 5
    progress("one sequence", 2, 6)
    report: dict[str, Any] = {
        "theme": "execution",
        "environment": environment(),
        "network": {"n": n, "d": d, "K": K, "blocks": built.network.blocks},
        "gate": gate,
        "single": _single(built.network, repeats, quick),
    }
    progress(f"{BATCH} sequences", 3, 6)
    report["batch"] = _batch(built.network, 64 if quick else BATCH, repeats)
    progress("folded and all cells", 4, 6)
    report["folded"] = _folded(built, 20_000 if quick else FOLDED_SEQUENCES, repeats)
    report["all_cells"] = _all_cells(built, K)
    report["scaling"] = _scaling(built.network, repeats)
    progress("GPU", 5, 6)
    if gpu_name() is not None:
        report["gpu"] = _gpu(built.network, repeats)
    progress("done", 6, 6)
    return report


def _inputs(network: Network, count: int, seed: int = 0) -> np.ndarray:
    shape = (count, network.architecture.seq_len, network.architecture.d_model)
    return np.random.default_rng(seed).random(shape)


def _gate(built: Built, grid: Grid, folded_count: int) -> dict[str, Any]:
    """Refuse to time what is wrong."""
    network = built.network
    x = _inputs(network, 8, seed=1)
    literal = network(x, executor="literal")
    if not np.array_equal(literal, network(x, executor="reference")):
        msg = "The literal executor differs from the reference; nothing is timed."
        raise EveryformerError(msg)
    plateau = _inputs(network, folded_count, seed=2)  # no point of these lies on a ramp
    folded = network(plateau, executor="folded")
    if not np.array_equal(folded, network(plateau, executor="literal")):
        msg = "The folded executor differs from the literal one; nothing is timed."
        raise EveryformerError(msg)
    return {
        "literal_equals_reference": len(x),
        "folded_equals_literal": len(plateau),
        "table_gap_sampled": table_gap(built, grid),
    }


def _single(network: Network, repeats: int, quick: bool) -> dict[str, Any]:
    """One sequence through all blocks: every contender."""
    x = _inputs(network, 1)
    rows = [part.rows for part in network.executor.packed]
    timings = {
        "read weights once": median_seconds(lambda: [r.sum() for r in rows], 4 * repeats),
        "literal": median_seconds(lambda: network(x), 4 * repeats),
        "eager torch": median_seconds(partial(eager_torch(network), x), 2 if quick else 3),
        "reference (numpy)": seconds_of(lambda: network(x, executor="reference")),
        "folded": median_seconds(lambda: network(x, executor="folded"), 4 * repeats),
    }
    if not quick:
        timings["torch.compile"] = median_seconds(partial(compiled_torch(network), x), 3)
    scan = jax_scan(network)
    if scan is not None:
        timings["JAX lax.scan"] = median_seconds(partial(scan, x), 3)
    return _with_rates(timings, network, 1)


def _batch(network: Network, count: int, repeats: int) -> dict[str, Any]:
    x = _inputs(network, count)
    timings = {
        "literal": median_seconds(lambda: network(x), repeats),
        "literal, 1 thread": seconds_of(lambda: network(x, threads=1)),
        "eager torch": seconds_of(partial(eager_torch(network), x)),
        "folded": median_seconds(lambda: network(x, executor="folded"), repeats),
    }
    scan = jax_scan(network)
    if scan is not None:
        timings["JAX lax.scan"] = median_seconds(partial(scan, x), 2)
    return _with_rates(timings, network, count)


def _with_rates(timings: dict[str, float], network: Network, count: int) -> dict[str, Any]:
    """Seconds, nanoseconds per block and token, and ratios to the literal executor."""
    work = network.blocks * network.architecture.seq_len * count
    literal = timings["literal"]
    result: dict[str, Any] = {
        "sequences": count,
        "seconds": timings,
        "ns_per_block_and_token": {k: v / work * 1e9 for k, v in timings.items()},
        "times_literal": {name: value / literal for name, value in timings.items()},
    }
    if "read weights once" in timings:
        floor = timings["read weights once"]
        result["literal_percent_of_bandwidth"] = 100 * floor / literal
    return result


def _folded(built: Built, count: int, repeats: int) -> dict[str, Any]:
    network = built.network
    x = _inputs(network, count)
    seconds = median_seconds(lambda: network(x, executor="folded"), repeats)
    return {"sequences": count, "seconds": seconds, "sequences_per_second": count / seconds}


def _all_cells(built: Built, K: int) -> dict[str, Any]:
    """Every set of columns through the literal network, compared with the table."""
    grid = Grid(K, built.target.seq_len, built.target.domain)
    x = grid.centres(grid.distinct_sets())
    results: list[np.ndarray] = []
    seconds = seconds_of(lambda: results.append(built.network(x)))
    gap = float(np.abs(results[0] - built.target(x)).max())
    return {"sets": len(x), "seconds": seconds, "largest_table_gap": gap}


def _scaling(network: Network, repeats: int) -> dict[str, Any]:
    """Time against depth and against batch on one thread, and the exponents of a fit."""
    longest = max(network.stages, key=lambda stage: stage.blocks)
    x = _inputs(network, 64)
    depths: dict[int, Callable[[], object]] = {}
    for share in (16, 8, 4, 2, 1):
        layers = longest.blocks // share
        arrays = {name: array[:layers] for name, array in longest.arrays()}
        part = longest.from_arrays(longest.name, longest.source, arrays)
        alone = Network(network.architecture, (part,))
        depths[layers] = partial(alone, x, threads=1)
    batches: dict[int, Callable[[], object]] = {
        count: partial(network, _inputs(network, count), threads=1)
        for count in (64, 128, 256, 512, 1024)
    }
    report: dict[str, Any] = {}
    for name, calls, rounds in (
        ("depth", depths, 4 * repeats),
        ("batch", batches, repeats + 2),
    ):
        seconds = interleaved_medians(calls, rounds)
        exponent = -fitted_order(list(seconds), list(seconds.values()))
        report[name] = {"seconds": seconds, "exponent": exponent}
    return report


def _gpu(network: Network, repeats: int) -> dict[str, Any]:
    """A million blocks on the GPU against the CPU of the same machine, in one run."""
    import torch

    from everyformer.model.execute import cuda

    deep = Network(network.architecture, network.stages * GPU_COPIES, network.positions)
    packed = deep.executor.packed
    x = _inputs(network, GPU_BATCH)
    on_gpu = torch.from_numpy(x).cuda()
    large = torch.from_numpy(_inputs(network, 16 * GPU_BATCH)).cuda()

    def launch(sequences: Any, dtype: type = np.float64) -> None:
        cuda.run(packed, sequences, dtype=dtype)
        torch.cuda.synchronize()

    reference = network(x)
    once = cuda.run(packed[: len(network.stages)], on_gpu).cpu().numpy()
    difference = float(np.abs(once - reference).max())
    if not difference <= 1e-12:
        msg = f"The GPU differs from the CPU by {difference:g}; it is not timed."
        raise EveryformerError(msg)
    eighth = GPU_BATCH // 8
    timed: dict[str, tuple[int, float]] = {
        "GPU float64": (GPU_BATCH, median_seconds(lambda: launch(on_gpu), repeats)),
        # float32 cannot hold the ids of this network: its speed is real, its numbers not.
        "GPU float32, speed only": (
            GPU_BATCH,
            median_seconds(lambda: launch(on_gpu, np.float32), repeats),
        ),
        "GPU float64, 16 batches": (len(large), median_seconds(lambda: launch(large), 3)),
        "CPU, 1 thread": (eighth, seconds_of(lambda: deep(x[:eighth], threads=1))),
        "CPU, 2 threads": (eighth, seconds_of(lambda: deep(x[:eighth], threads=2))),
        "CPU, all threads": (GPU_BATCH, median_seconds(lambda: deep(x), 3)),
    }
    gpu_rate = GPU_BATCH / timed["GPU float64"][1]
    return {
        "blocks": deep.blocks,
        "tokens_per_sequence": network.architecture.seq_len,
        "largest_difference_from_cpu": difference,
        "equal_bits": bool(np.array_equal(once, reference)),
        "sequences": {name: count for name, (count, _) in timed.items()},
        "seconds": {name: seconds for name, (_, seconds) in timed.items()},
        "gpu_throughput_over": {
            name: gpu_rate / (count / seconds)
            for name, (count, seconds) in timed.items()
            if name.startswith("CPU")
        },
    }


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal."""
    net = report["network"]
    shown = Table(
        title=f"n = {net['n']}, d = {net['d']}, K = {net['K']}: {net['blocks']:,} blocks, "
        "medians",
        title_justify="left",
    )
    for name in ("executor", "sequences", "seconds", "ns/block/token", "x literal"):
        shown.add_column(name, justify="left" if name == "executor" else "right")
    for part in (report["single"], report["batch"]):
        for name, seconds in part["seconds"].items():
            shown.add_row(
                name,
                f"{part['sequences']:,}",
                f"{seconds:.4g}",
                f"{part['ns_per_block_and_token'][name]:.3g}",
                f"{part['times_literal'][name]:.3g}",
            )
        shown.add_section()
    cells, folded = report["all_cells"], report["folded"]
    shown.add_row("literal, all cells", f"{cells['sets']:,}", f"{cells['seconds']:.3g}")
    shown.add_row("folded", f"{folded['sequences']:,}", f"{folded['seconds']:.3g}")
    floor = report["single"]["literal_percent_of_bandwidth"]
    shown.add_row(f"one sequence: {floor:.0f} % of memory bandwidth")
    for kind in ("depth", "batch"):
        exponent = report["scaling"][kind]["exponent"]
        shown.add_row(f"time ~ {kind}^{exponent:.3f}")
    gpu = report.get("gpu")
    if gpu is not None:
        shown.add_section()
        _gpu_rows(shown, gpu)
    return shown


def _gpu_rows(shown: Table, gpu: dict[str, Any]) -> None:
    work = gpu["blocks"] * gpu["tokens_per_sequence"]
    literal = gpu["seconds"]["GPU float64"]
    for name, seconds in gpu["seconds"].items():
        count = gpu["sequences"][name]
        shown.add_row(
            f"{name}, {gpu['blocks']:,} blocks",
            f"{count:,}",
            f"{seconds:.4g}",
            f"{seconds / work / count * 1e9:.3g}",
            f"{(seconds / count) / (literal / GPU_BATCH):.3g} x GPU",
        )


@figures.styled
def picture(report: dict[str, Any], path: Path) -> None:
    """Time against depth and batch, log-log."""
    figure = Figure(figsize=(9, 4))
    for axes, kind in zip(figure.subplots(1, 2), ("depth", "batch"), strict=True):
        times = report["scaling"][kind]["seconds"]
        sizes = [int(size) for size in times]
        axes.plot(sizes, list(times.values()), **figures.curve(0, 1))
        figures.logarithmic(axes.xaxis)
        figures.tick_each(axes.xaxis, sizes)
        figures.logarithmic(axes.yaxis)
        axes.set_xlabel("blocks" if kind == "depth" else "sequences")
        axes.set_ylabel("seconds")
        exponent = report["scaling"][kind]["exponent"]
        figures.title(axes, f"time grows as {kind} to the power {exponent:.3f}")
    net = report["network"]
    figure.suptitle(f"Literal executor, n = {net['n']}, d = {net['d']}, K = {net['K']}")
    figures.write(figure, path)
