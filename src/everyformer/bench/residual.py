"""Section 5.4: a residual network and a Transformer, built and certified on the same grids.

Parameters over the lower bound of the section against K: both are optimal in order where
that is flat. And the certified distance of both from f, which is nearly that of the table
they share.
"""

from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from everyformer import figures
from everyformer.bench.methods import shifts
from everyformer.bench.results import environment
from everyformer.bench.tables import table_of
from everyformer.construct.pipeline import construct
from everyformer.construct.residual import ResidualPlan
from everyformer.construct.shifts.plan import plan_shifts
from everyformer.errors import EveryformerError
from everyformer.papers import YUN2020, implements
from everyformer.progress import Progress, no_progress
from everyformer.targets.box import Grid
from everyformer.targets.target import Target

GRIDS = {(1, 2): (2, 4, 8, 16, 32, 64, 128), (2, 1): (2, 4, 8, 16, 32, 64, 128),
         (3, 1): (2, 4, 8, 16), (2, 2): (2, 4, 8), (4, 1): (2, 4, 8)}  # fmt: skip
QUICK_GRIDS = {(2, 1): (2, 4, 8)}
"""K for each (n, d), n d <= 4."""

EXPONENT = Fraction(2)


@dataclass(frozen=True)
class Row:
    """Both networks on one grid; d_2(f, g).

    Attributes:
        n: Tokens.
        d: Numbers of a token.
        K: Cells per axis.
        lower_bound: Numbers that any table of the function stores.
        transformer: Parameters of Theorem 3, counted.
        transformer_bound: Certified.
        residual: Parameters of the residual network, counted.
        residual_bound: Certified.
        residual_sampled: Its distance at 4,096 random points.
    """

    n: int
    d: int
    K: int
    lower_bound: int
    transformer: int
    transformer_bound: float
    residual: int
    residual_bound: float
    residual_sampled: float


def ripple(n: int, d: int) -> Target:
    """sin(3 x_j + j) mean(X): smooth, and not equivariant."""

    def function(x: np.ndarray) -> np.ndarray:
        places = np.arange(n)[:, None]
        return np.sin(3 * x + places) * x.mean(axis=(-2, -1), keepdims=True)

    return Target(function, n, d, name="ripple")


@implements(YUN2020, "Section 5.4")
def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """Build and certify both networks on every grid."""
    grids = QUICK_GRIDS if quick else GRIDS
    rows: list[dict[str, Any]] = []
    for (n, d), sizes in grids.items():
        target = ripple(n, d)
        for done, K in enumerate(sizes):
            progress(f"n = {n}, d = {d}, K = {K}", done, len(sizes))
            rows.append(asdict(measured(target, K)))
    return {
        "theme": "residual",
        "environment": environment(),
        "target": "sin(3 x_j + j) mean(X)",
        "p": str(EXPONENT),
        "rows": rows,
    }


def measured(target: Target, K: int) -> Row:
    """Both networks on one grid.

    Raises:
        EveryformerError: If one is not certified, or is farther off at samples.
    """
    plan = ResidualPlan(Grid(K, target.seq_len, target.domain))
    network = plan.build(target)
    proved = network.prove(target, EXPONENT).real
    sampled = network.distance_sampled(target, float(EXPONENT))
    built = construct(target, grid=K, method=shifts.PLAIN)
    other = built.certificate.bound
    if proved is None or other is None or sampled > proved.value:
        msg = f"{target.name}, K={K}: certified {proved} and {other}, sampled {sampled}."
        raise EveryformerError(msg)
    return Row(
        target.seq_len,
        target.d_model,
        K,
        int(plan_shifts(target, K).lower_bound),
        built.plan.count().parameters,
        float(other.value),
        network.parameters,
        float(proved.value),
        sampled,
    )


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal."""
    columns = {
        "n": "{n}",
        "d": "{d}",
        "K": "{K}",
        "at least": "{lower_bound:,}",
        "Thm 3 /": "{over:.1f}",
        "residual /": "{residual_over:.2f}",
        "Thm 3 <=": "{transformer_bound:.4g}",
        "residual <=": "{residual_bound:.4g}",
        "sampled": "{residual_sampled:.4g}",
    }
    rows: list[dict[str, Any]] = []
    for row in report["rows"]:
        over, residual = (row[x] / row["lower_bound"] for x in ("transformer", "residual"))
        rows.append(row | {"over": over, "residual_over": residual})
    title = "Section 5.4, d_2: parameters over the lower bound, and bounds"
    return table_of(title, rows, columns)


@figures.styled
def picture(report: dict[str, Any], path: Path) -> None:
    """Ratios against K, and certified bounds against parameters."""
    figure = Figure(figsize=(12, 4.6))
    left, right = figure.subplots(1, 2)
    sizes = sorted({(row["n"], row["d"]) for row in report["rows"]})
    for place, (n, d) in enumerate(sizes):
        rows = [row for row in report["rows"] if (row["n"], row["d"]) == (n, d)]
        K = [row["K"] for row in rows]
        colour = figures.colour(place)
        for kind, marker in (("transformer", "o"), ("residual", "s")):
            ratio = [row[kind] / row["lower_bound"] for row in rows]
            bounds = [row[f"{kind}_bound"] for row in rows]
            label = f"n = {n}, d = {d}" if kind == "transformer" else None
            style: dict[str, Any] = {"color": colour, "marker": marker, "ms": 4.5}
            style["ls"] = "-" if kind == "transformer" else "--"
            left.plot(K, ratio, **style)
            right.plot([row[kind] for row in rows], bounds, label=label, **style)
    for axis in (left.xaxis, left.yaxis, right.xaxis, right.yaxis):
        figures.logarithmic(axis, base=2 if axis is left.xaxis else 10)
    figures.tick_each(left.xaxis, [row["K"] for row in report["rows"]])
    left.set_xlabel("K, cells per axis")
    left.set_ylabel("parameters / lower bound")
    figures.title(left, "Optimal in order where this is flat")
    right.set_xlabel("parameters")
    right.set_ylabel("certified bound of $d_2(f, g)$")
    figures.title(right, "o, line: Theorem 3.  Square, dashes: residual network")
    figures.legend_beside(right)
    figures.write(figure, path)
