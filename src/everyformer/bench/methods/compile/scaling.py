"""How compiled networks grow: with tokens, coordinates, length of the program, accuracy.

Each series changes one size and keeps the others. The exponent of y is the slope of log y
by log size, by least squares; for the accuracy the size is log(1/tol).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from everyformer.bench.kept import Kept
from everyformer.bench.methods.compile.compiling import (
    Function,
    mlp,
    normalise,
    ordered,
    row_of,
    soft_attention,
)
from everyformer.construct.compile.method import Compile, Variant
from everyformer.model.forward import Progress, no_progress
from everyformer.targets.target import Target

FITTED = ("lines", "blocks", "width", "prefix", "parameters", "build_s", "verify_s")

TOKENS = (8, 16, 32, 64, 128, 256)
LENGTHS = (1, 2, 4, 8)
TOLERANCES = tuple(10.0**-k for k in (2, 4, 6, 8, 10))


@dataclass(frozen=True)
class Point:
    """One network of a series.

    Attributes:
        series: What grows.
        name: The function.
        size: How large it is here.
        function: f.
        n: Tokens.
        d: Coordinates.
        tol: Tolerance.
        variant: How tokens are sorted.
    """

    series: str
    name: str
    size: float
    function: Function
    n: int
    d: int
    tol: float = 1e-6
    variant: Variant = "odd-even"

    @property
    def about(self) -> dict[str, Any]:
        """What names its row."""
        names = ("series", "size", "n", "d", "tol")
        return {"case": self.name} | {name: getattr(self, name) for name in names}


def repeated(length: int) -> Function:
    """A tanh MLP with a skip connection, so many times."""

    def function(x: np.ndarray) -> np.ndarray:
        for _ in range(length):
            x = x + mlp(x) / 8
        return x

    return function


def points(*, quick: bool = False) -> Iterator[Point]:
    """All networks of all series, the largest last."""
    tokens, lengths = (TOKENS[:2], LENGTHS[:2]) if quick else (TOKENS, LENGTHS)
    tolerances = TOLERANCES[:2] if quick else TOLERANCES
    for d in (1, 2) if quick else (1, 2, 4, 8):
        yield Point("d", "soft attention", d, soft_attention, 16, d)
    for d in () if quick else (2, 4, 8):
        yield Point("d", "normalise", d, normalise, 8, d, 1e-4)
    for length in lengths:
        yield Point("length", "tanh MLP", length, repeated(length), 8, 4)
    for tol in tolerances:
        size = math.log10(1 / tol)
        yield Point("log 1/tol", "soft attention", size, soft_attention, 8, 2, tol)
    for tol in () if quick else tolerances:
        size = math.log10(1 / tol)
        yield Point("log 1/tol", "normalise", size, normalise, 8, 2, tol)
    for n in tokens:
        yield Point("n", "soft attention", n, soft_attention, n, 2)
        yield Point("n", "sort", n, ordered, n, 1)
        name = "sort, log-depth"
        yield Point("n", name, n, ordered, n, 1, variant="log-depth")


def run(
    *,
    quick: bool = False,
    progress: Progress = no_progress,
    kept: Kept | None = None,
) -> dict[str, Any]:
    """Compile and verify every network of every series."""
    kept = kept or Kept()
    chosen = list(points(quick=quick))
    rows: list[dict[str, Any]] = []
    for done, point in enumerate(chosen):
        progress(f"compile-scaling: {point.name}, {point.series}", done, len(chosen))
        rows.append(kept.row(point.about, lambda point=point: _row(point)))
    return {
        "theme": "compile-scaling",
        **kept.provenance,
        "rows": rows,
        "exponents": exponents(rows),
    }


def _row(point: Point) -> dict[str, Any]:
    target = Target(point.function, point.n, point.d, name=point.name)
    row = row_of(target, point.tol, Compile(point.variant), measure=False)
    if "construct_s" in row:
        row["build_s"] = row["trace_s"] + row["construct_s"]
    return row | point.about


def exponents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each series of a function the slopes of all that grows."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if "build_s" in row:
            groups.setdefault((row["series"], row["case"]), []).append(row)
    found: list[dict[str, Any]] = []
    for (series, case), members in groups.items():
        sizes = np.log([row["size"] for row in members])
        slopes: dict[str, Any] = {"series": series, "case": case}
        for name in FITTED:
            values = np.array([row[name] for row in members], dtype=float)
            fits = len(members) > 1 and (values > 0).all()
            slopes[name] = float(np.polyfit(sizes, np.log(values), 1)[0]) if fits else None
        found.append(slopes)
    return found


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal."""
    shown = Table(title="Compiled programs as they grow; seconds are of one core")
    for name in ("grows", "f"):
        shown.add_column(name)
    for name in ("n, d", "tol", *FITTED[:5], "float64", "build s", "verify s"):
        shown.add_column(name, justify="right")
    slopes = {(one["series"], one["case"]): one for one in report["exponents"]}
    order = {key: k for k, key in enumerate(slopes)}

    def place(row: dict[str, Any]) -> tuple[int, float]:
        return order.get((row["series"], row["case"]), -1), row["size"]

    rows = sorted(report["rows"], key=place)
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        shown.add_row(*_cells(row))
        key = (row["series"], row["case"])
        if (after is None or key != (after["series"], after["case"])) and key in slopes:
            found = slopes[key]
            texts = ["" if found[k] is None else f"^{found[k]:.2f}" for k in FITTED]
            shown.add_row("", "exponent", "", "", *texts[:5], "", *texts[5:])
            shown.add_section()
    return shown


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [row["series"], row["case"], f"{row['n']}, {row['d']}", f"{row['tol']:g}"]
    if "build_s" not in row:
        return [*cells, row["outcome"][:60]]
    cells += [f"{row[key]:,}" for key in FITTED[:5]]
    cells.append(f"{row['proved_float64']:.2g}" if row["proved_float64"] else "none")
    return [*cells, f"{row['build_s']:.1f}", f"{row['verify_s']:.1f}"]
