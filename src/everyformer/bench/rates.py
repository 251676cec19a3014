"""How fast Theorem 2 closes in on f: orders in delta against d/p of Proposition 4.

Without positions nothing is promised in cells where two tokens have the same column. Their
share is O(delta^d) (`Grid.repeated_share`), so they cost O(delta^{d/p}), and the rest, a
table of a Lipschitz function, O(delta): the order of the whole is min(1, d/p).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from everyformer import figures
from everyformer.bench.constructions import fitted_order
from everyformer.bench.methods import shifts
from everyformer.bench.results import environment
from everyformer.bench.tables import table_of
from everyformer.certify.bound import Bound
from everyformer.construct.pipeline import Built, construct
from everyformer.errors import EveryformerError
from everyformer.progress import Progress, no_progress
from everyformer.targets.box import Grid
from everyformer.targets.target import Target

GRIDS = {1: (8, 16, 32, 64, 128), 2: (4, 8, 16)}
QUICK_GRIDS = {1: (4, 8, 16), 2: (2, 4)}
EXPONENTS = (1, 2, 4)
TOKENS = 2
SAMPLES = 2**14


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """Build Theorem 2 on every grid, certify it for every p, sample it, fit orders."""
    grids = QUICK_GRIDS if quick else GRIDS
    rows: list[dict[str, Any]] = []
    for d, sizes in grids.items():
        points: dict[int, list[dict[str, Any]]] = {p: [] for p in EXPONENTS}
        for done, K in enumerate(sizes):
            progress(f"Theorem 2, d = {d}, K = {K}", done, len(sizes))
            built = construct(lamp(d), grid=K, method=shifts.EQUIVARIANT)
            for p, point in measured(built).items():
                points[p].append(point)
        rows += [{"d": d, "p": p, **_fit(sizes, points[p], d, p)} for p in EXPONENTS]
    return {
        "theme": "rates",
        "environment": environment(),
        "n": TOKENS,
        "target": lamp(1).name,
        "samples": SAMPLES,
        "rows": rows,
    }


def lamp(d: int) -> Target:
    """1 + sin(3 x_j) mean(X) / 2: equivariant, smooth, nowhere near 0."""

    def function(x: np.ndarray) -> np.ndarray:
        return 1 + np.sin(3 * x) * x.mean(axis=(-2, -1), keepdims=True) / 2

    return Target(function, TOKENS, d, equivariant=True, name="lamp")


def measured(built: Built) -> dict[int, dict[str, Any]]:
    """By p: the bounds proved of the whole and of duplicates, and what samples say.

    Raises:
        EveryformerError: If a sampled distance is above its certified bound.
    """
    plan_grid = Grid(built.plan.cells, built.target.seq_len, built.target.domain)
    share = plan_grid.repeated_share
    samples = {name: _gaps(built, x) for name, x in sampled_points(plan_grid).items()}
    found: dict[int, dict[str, Any]] = {}
    for p in EXPONENTS:
        bound = replace(built, p=Fraction(p), proved=None).certificate.bound
        if bound is None:
            raise EveryformerError(f"{built.plan.label}, p = {p}: nothing was certified.")
        means = {name: float((gap**p).sum((1, 2)).mean()) for name, gap in samples.items()}
        alike = float(share) * means["repeated"]
        whole = (alike + float(1 - share) * means["distinct"]) ** (1 / p)
        duplicates = _part(bound, "duplicates")
        for part, proved, seen in (
            ("d_p(f, g)", bound, whole),
            ("the duplicates' part", duplicates, alike ** (1 / p)),
        ):
            if seen > proved.value:
                msg = (
                    f"K={plan_grid.cells}, p={p}: {part} is {seen} at samples, certified "
                    f"{proved}."
                )
                raise EveryformerError(msg)
        found[p] = {
            "repeated_share": str(share),
            "certified_bound": float(bound.value),
            "distance_sampled": whole,
            "duplicates_bound": float(duplicates.value),
            "duplicates_sampled": alike ** (1 / p),
        }
    return found


def _part(bound: Bound, name: str) -> Bound:
    """The part of a bound whose reason begins with a word."""
    found = [term for term in _tree(bound) if term.reason.startswith(name)]
    if len(found) != 1:
        raise EveryformerError(f"The bound has {len(found)} parts for {name}: {bound}.")
    return found[0]


def _tree(bound: Bound) -> Iterator[Bound]:
    yield bound
    for term in bound.terms:
        yield from _tree(term)


def _gaps(built: Built, x: np.ndarray) -> np.ndarray:
    return np.abs(built.network(x) - built.target(x))


def sampled_points(grid: Grid, count: int = SAMPLES) -> dict[str, np.ndarray]:
    """Uniform points of [0, 1]^{2d} in cells with equal columns, and in others."""
    V, d = grid.columns, grid.d_model
    rng = np.random.default_rng(0)
    first = rng.integers(V, size=count)
    other = (first + rng.integers(1, V, size=count)) % V
    pairs = {"repeated": (first, first), "distinct": (first, other)}
    inside = rng.random((count, TOKENS, d))
    return {
        name: (grid.digits(np.stack(pair, axis=1)) + inside) / grid.cells
        for name, pair in pairs.items()
    }


SERIES = {
    "order_certified": "certified_bound",
    "order_sampled": "distance_sampled",
    "duplicates_order_certified": "duplicates_bound",
    "duplicates_order_sampled": "duplicates_sampled",
}


def _fit(
    sizes: Sequence[int], points: list[dict[str, Any]], d: int, p: int
) -> dict[str, Any]:
    lists = {name: [point[name] for point in points] for name in points[0]}
    orders = {order: fitted_order(sizes, lists[name]) for order, name in SERIES.items()}
    expected = {"order_expected": min(1.0, d / p), "duplicates_order_expected": d / p}
    return {"K": list(sizes), **lists, **orders, **expected}


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal: orders certified and sampled against d/p."""
    columns = {
        "d": "{d}",
        "p": "{p}",
        "K": "{K[0]}..{last}",
        "min(1, d/p)": "{order_expected:g}",
        "whole": "{order_certified:.2f} ({order_sampled:.2f})",
        "d/p": "{duplicates_order_expected:g}",
        "duplicates": "{duplicates_order_certified:.2f} ({duplicates_order_sampled:.2f})",
    }
    rows = [row | {"last": row["K"][-1]} for row in report["rows"]]
    title = "Theorem 2, n = 2: error = c K^-order, certified (sampled)"
    return table_of(title, rows, columns)


@figures.styled
def picture(report: dict[str, Any], path: Path) -> None:
    """Duplicates' part of the distance against K, certified and sampled, with slope d/p."""
    figure = Figure(figsize=(11, 4.2))
    panels = figure.subplots(1, 2, sharey=True)
    for d, axes in zip((1, 2), panels, strict=True):
        rows = [row for row in report["rows"] if row["d"] == d]
        for place, row in enumerate(rows):
            K, order = np.asarray(row["K"]), row["duplicates_order_expected"]
            colour = figures.colour(place)
            open_dot = {"marker": "o", "markersize": 8, "markerfacecolor": "white"}
            label = f"p = {row['p']}, order d/p = {order:g}"
            axes.plot(K, row["duplicates_bound"], color=colour, label=label, **open_dot)
            axes.plot(K, row["duplicates_sampled"], "x", color=colour, ms=4.5, zorder=3)
            slope = row["duplicates_bound"][0] * (K / K[0]) ** -order
            axes.plot(K, slope, ":", color="0.3", lw=1.1, zorder=3)
        figures.title(axes, f"d = {d}, n = 2")
        figures.logarithmic(axes.xaxis, base=2)
        figures.tick_each(axes.xaxis, [K for row in rows for K in row["K"]])
        figures.logarithmic(axes.yaxis)
        axes.set_xlabel("K = 1/$\\delta$")
        figures.legend_beside(axes)
    panels[0].set_ylabel(
        "cost of duplicates: certified (o),\nsampled (x), $K^{-d/p}$ (dots)"
    )
    figures.write(figure, path)
