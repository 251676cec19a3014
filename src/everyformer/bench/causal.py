"""Causal patterns beside their two-sided forms: nanoseconds for each connection.

Forward and backward, bf16 with 12 heads of 64 on a GPU, float32 with one head on one thread
of a CPU. A causal part has about half of the connections, so at equal speed it takes half
of the time. Checked first: every causal part against dense attention with both masks.

Both ways read and write the same tokens, which takes as long however few connections there
are: what a window of three tokens takes, the floor, is also taken from both, as are its
connections ("beyond the floor").
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.table import Table

from everyformer import patterns
from everyformer.bench.gate import gate_row, masked_attention
from everyformer.bench.kept import Kept, Row
from everyformer.bench.sparse import SIZE, forward_and_backward, inputs
from everyformer.bench.tables import table_of
from everyformer.bench.timing import cpu_milliseconds, gpu_milliseconds
from everyformer.ops import sparse_attention
from everyformer.patterns import Part, past_of
from everyformer.progress import Progress, no_progress

WIDTH, WIDE = 256, 2048
LENGTH, ON_CPU, GATE = 32_768, 1024, 600
ROUNDS = 6
CLEARLY = 1.1
"""Times the floor: what takes less says nothing beyond it."""

Parts = Callable[[int, int], tuple[Part, ...]]

PATTERNS: dict[str, Parts] = {
    "window": lambda n, w: patterns.window(n, w).parts,
    "strided": lambda n, w: patterns.strided(n, w).parts,
    "strided, union": lambda n, w: patterns.strided(n, w).union().parts,
    "fixed": lambda n, w: patterns.fixed(n, w).parts,
    "fixed, union": lambda n, w: patterns.fixed(n, w).union().parts,
    "window and global": lambda n, w: patterns.window_global(n, w).parts,
    "BigBird": lambda n, w: patterns.big_bird_blocks(n, max(16, w // 4)).parts,
    "star, relay first": lambda n, w: patterns.star_first(n, w // 8).parts,
    "dense": lambda n, w: patterns.dense(n).parts,
}
WIDE_PATTERNS: dict[str, Parts] = {
    "wide window": lambda n, w: patterns.window(n, w).parts,
    "wide classes": lambda n, w: patterns.strided(n, n // w).parts[1:],
    "wide segments": lambda n, w: patterns.fixed(n, w).parts[:1],
    "many columns": lambda n, w: patterns.fixed(n, n // w).parts[1:],
    "wide window and global": lambda n, w: patterns.window_global(n, w).parts,
    "BigBird, many random": lambda n, w: (
        patterns.big_bird_blocks(n, max(16, w // 32), random=27).parts
    ),
}
"""About as many connections for each token as the width says, or twice as many."""


def run(
    *,
    quick: bool = False,
    progress: Progress = no_progress,
    kept: Kept | None = None,
) -> dict[str, Any]:
    """Every pattern both ways: time, connections, nanoseconds for each, and the ratio.

    Each part is checked before it is timed, and kept as soon as both are done.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = device == "cuda"
    kept = kept or Kept()
    n, heads = (LENGTH, 12) if on_gpu else (ON_CPU, 1)
    n = n // 4 if quick else n
    rounds = 1 if quick else ROUNDS
    clock = gpu_milliseconds if on_gpu else cpu_milliseconds
    tensors = inputs(device, n, heads)

    least = patterns.window(n, 1).parts[0]

    def alone() -> Row:
        return {"ms_sampled": clock(lambda: forward_and_backward(tensors, least), rounds)}

    floor = kept.row({"floor": n}, alone)["ms_sampled"]

    def both(whole: Part, past: Part, gated: Part) -> Row:
        row: Row = {"gate": _gate(device, gated)}
        for way, part in (("two_sided", whole), ("causal", past)):
            ms = clock(lambda part=part: forward_and_backward(tensors, part), rounds)
            row |= {f"{way}_ms_sampled": ms, f"{way}_connections": part.connections}
            row[f"{way}_ns_sampled"] = 1e6 * ms / (heads * part.connections)
        row["ratio_sampled"] = row["causal_ns_sampled"] / row["two_sided_ns_sampled"]
        causal, two_sided = (
            (row[f"{way}_ms_sampled"] - floor)
            / (row[f"{way}_connections"] - least.connections)
            for way in ("causal", "two_sided")
        )
        above = min(row["causal_ms_sampled"], row["two_sided_ms_sampled"]) > CLEARLY * floor
        row["ratio_beyond_floor_sampled"] = causal / two_sided if above else None
        return row

    rows: list[Row] = []
    widths = (WIDTH, WIDE) if on_gpu else (64, 256)
    cases = [
        *((name, make, widths[0], 48) for name, make in PATTERNS.items()),
        *((name, make, widths[1], 300) for name, make in WIDE_PATTERNS.items()),
    ]
    for done, (name, make, width, gate_width) in enumerate(cases):
        progress(f"{name}, n = {n:,}", done, len(cases))
        pairs = zip(make(n, width), make(GATE, gate_width), strict=True)
        for number, (whole, gated) in enumerate(pairs):
            each = (whole, past_of(whole), past_of(gated))
            about: Row = {"pattern": name, "part": number + 1, "n": n}
            rows.append(kept.row(about, partial(both, *each)))
    return {
        "theme": "causal",
        **kept.provenance,
        "heads": heads,
        "head_size": SIZE,
        "floor_ms_sampled": floor,
        "rows": rows,
    }


def _gate(device: str, part: Part) -> Row:
    """Against dense attention with the mask of the pattern and that of the past."""
    exact = masked_attention(torch.tensor(part.mask(), device=device).tril())
    ours = partial(sparse_attention, part=part)
    tensors = inputs(device, part.n, heads=2 if device == "cuda" else 1)
    about = {"kind": part.kind, "n": part.n}
    return gate_row("A causal part", about, tensors, ours, ("eager", exact), exact)


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal."""
    columns = {
        "pattern": "{pattern} {part}",
        "n": "{n:,}",
        "two-sided": "{two_sided_ns_sampled:.4g}",
        "causal": "{causal_ns_sampled:.4g}",
        "causal / two-sided": "{ratio_sampled:.2f}",
        "beyond the floor": "{ratio_beyond_floor_sampled:.2f}",
    }
    title = "Nanoseconds for each connection, forward and backward"
    return table_of(title, report["rows"], columns, left=["pattern"])
