"""How long certificates take, and how tight they are."""

import os
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from everyformer.bench.results import environment
from everyformer.bench.tables import table_of
from everyformer.certify.on_cells.cells import Cells
from everyformer.certify.proof import Computing
from everyformer.certify.prove import prove
from everyformer.certify.weights import read_weights
from everyformer.construct.certificates import distance_sampled
from everyformer.construct.pipeline import construct
from everyformer.errors import EveryformerError
from everyformer.progress import Progress, no_progress
from everyformer.targets.box import Grid
from everyformer.targets.gallery import GALLERY

SAMPLES = 8192


class Case(NamedTuple):
    """A network to certify; every cell by itself, or orbits of cells."""

    target: str
    n: int
    d: int
    K: int
    orbits: bool


CASES = (
    Case("soft_attention", 2, 1, 64, True),
    Case("soft_attention", 2, 1, 256, True),
    Case("reverse", 2, 1, 128, False),
    Case("soft_attention", 3, 2, 8, True),
    Case("soft_attention", 4, 1, 32, True),
    Case("soft_attention", 4, 1, 32, False),
)
QUICK_CASES = CASES[:1]


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """One certificate for each case, from the file of weights to both bounds."""
    rows = [_measure(case, progress) for case in (QUICK_CASES if quick else CASES)]
    report: dict[str, Any] = {"theme": "certificates", "environment": environment()}
    return report | {"p": "2", "workers": os.cpu_count(), "rows": rows}


def _measure(case: Case, progress: Progress) -> dict[str, Any]:
    target = GALLERY[case.target](case.n, case.d)
    built = construct(target, grid=case.K, progress=progress)
    assert target.expression is not None, "gallery targets are traced"  # noqa: S101
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.safetensors"
        built.network.save(path)
        started = time.perf_counter()
        weights = read_weights(path)
        grid = Grid(case.K, case.n, target.domain)
        cells = Cells.of(grid, symmetric=case.orbits)
        proof = prove(
            weights,
            cells,
            target.expression,
            Fraction(2),
            Computing(workers=None, progress=progress),
        )
        seconds = time.perf_counter() - started
    sampled = distance_sampled(built.network, target, 2.0, SAMPLES)
    if proof.real is None or proof.float64 is None or proof.real.value < sampled:
        msg = f"{case} is not certified, or its bound is below {sampled}: {proof.obstacles}"
        raise EveryformerError(msg)
    return {
        **case._asdict(),
        "blocks": weights.blocks,
        "cells": grid.sequences,
        "examined": cells.count,
        "seconds": seconds,
        "bound": proof.real.format_value(),
        "float64_bound": proof.float64.format_value(),
        "distance_sampled": sampled,
        "ratio": float(proof.real.value) / sampled,
    }


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal."""
    columns = {
        "target": "{target}\n{n}, {d}, {K}",
        "blocks": "{blocks:,}",
        "cells": "{cells:,}",
        "examined": "{examined:,}",
        "s": "{seconds:.1f}",
        "bound": "{bound}",
        "ratio": "{ratio:.2f}",
    }
    title = f"Certificates (n, d, K), p = 2, {report['workers']} processes"
    shown = table_of(title, report["rows"], columns, left=["target"])
    shown.columns[0].no_wrap = True
    return shown
