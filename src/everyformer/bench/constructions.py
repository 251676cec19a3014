"""What a tolerance costs by method, built and certified; and how fast bounds fall."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from everyformer import figures
from everyformer.bench.methods import averaging, partition, shifts
from everyformer.bench.results import environment, seconds_of
from everyformer.certify.proof import Computing
from everyformer.construct.comparison import Comparison, cheapest_first
from everyformer.construct.method import Method
from everyformer.construct.pipeline import attempt, compare, construct
from everyformer.construct.problem import Problem
from everyformer.errors import EveryformerError
from everyformer.progress import Progress, no_progress
from everyformer.targets.gallery import GALLERY
from everyformer.targets.target import Target

TOLERANCES = (0.1, 0.03, 0.01)
KINKS = ("distance_to_maximum", "sort")
"""Targets that are not twice differentiable; all others of the gallery are smooth."""

ORDER_GRIDS = (32, 64, 128)
QUICK_GRIDS = (8, 16)
SAMPLES = 4096


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """Build and certify every method for every target and tolerance; then fit orders."""
    names = ("soft_attention", "sort") if quick else tuple(GALLERY)
    tolerances = TOLERANCES[:1] if quick else TOLERANCES
    cases = [(name, tol) for name in names for tol in tolerances]
    rows: list[dict[str, Any]] = []
    for done, (name, tol) in enumerate(cases):
        progress(f"{name}, tol {tol:g}", done, len(cases))
        target = GALLERY[name](2, 1)
        found = compare(target, tol)
        rows += [
            {"target": name, "tol": tol, **_measure(target, found, family)}
            for family in families(found)
        ]
    return {
        "theme": "constructions",
        "environment": environment(),
        "p": "2",
        "n": 2,
        "d": 1,
        "rows": rows,
        "orders": orders(wave(), QUICK_GRIDS if quick else ORDER_GRIDS, progress),
    }


def wave() -> Target:
    """sin(3 x_j + j) mean(X) + x_j^2 / 2: smooth, not equivariant, curved everywhere."""

    def function(x: np.ndarray) -> np.ndarray:
        mean = x.mean(axis=(-2, -1), keepdims=True)
        return np.sin(3 * x + np.arange(2)[:, None]) * mean + x**2 / 2

    return Target(function, 2, 1, name="wave")


def families(found: Comparison) -> list[str]:
    """The rows of the table; of several settings of a method the cheapest is built."""
    return list(dict.fromkeys(candidate.method.family for candidate in found.candidates))


def _measure(target: Target, found: Comparison, method: str) -> dict[str, Any]:
    """A network of one method: its size, its certified bound, and what it takes."""
    own = tuple(one for one in found.candidates if one.method.family == method)
    started = time.perf_counter()
    problem = Problem(target, found.p, tol=found.tol)
    plans = cheapest_first(problem, replace(found, candidates=own))
    attempts = (attempt(plan, problem, Computing()) for plan in plans)
    built = next((one for one in attempts if one is not None), None)
    if built is None:
        return {"method": method, "refusal": "; ".join(map(str, problem.tried))}
    seconds = time.perf_counter() - started
    proved = built.certificate
    bounds = [bound for bound in (proved.bound, proved.float64_bound) if bound is not None]
    x = _points(target, 1)
    built.network(x)
    return {
        "method": method,
        "construction": built.plan.source,
        "K": built.plan.grid,
        "blocks": built.cost.blocks,
        "attention_layers": built.cost.attention_layers,
        "parameters": built.cost.parameters,
        "nonzeros": built.cost.nonzeros,
        "certified_bound": max(bounds, key=lambda bound: bound.value).format_value(),
        "build_and_certify_s": seconds,
        "run_one_s": seconds_of(lambda: built.network(x)),
        "refusal": None,
    }


def _points(target: Target, count: int) -> np.ndarray:
    low, high = np.asarray(target.domain.lows), np.asarray(target.domain.highs)
    cube = np.random.default_rng(0).random((count, target.seq_len, target.d_model))
    return low + (high - low) * cube


def orders(
    target: Target, grids: Sequence[int], progress: Progress = no_progress
) -> dict[str, Any]:
    """How certified bounds and sampled errors fall with K, and the exponents fitted.

    Raises:
        EveryformerError: If a sampled distance is above its certified bound.
    """
    ways: dict[str, Method] = {
        "Yun et al., Theorem 3": shifts.PLAIN,
        "averaging, wide": averaging.WIDE,
        "partition of unity, D = 1": partition.SOFT,
        f"partition of unity, D = {partition.SHARP.decay}": partition.SHARP,
    }
    report: dict[str, Any] = {}
    x = _points(target, SAMPLES)
    f = target(x)
    for done, (name, method) in enumerate(ways.items()):
        bounds: list[float] = []
        sampled: list[float] = []
        for K in grids:
            progress(f"order of {name}, K = {K}", done, len(ways))
            built = construct(target, grid=K, method=method)
            bound = built.certificate.bound
            gap = np.abs(built.network(x) - f)
            sampled.append(float((gap**2).sum(axis=(1, 2)).mean() ** 0.5))
            if bound is None or sampled[-1] > bound.value:
                msg = f"{name}, K={K}: d_2 is {sampled[-1]} at samples, certified {bound}."
                raise EveryformerError(msg)
            bounds.append(float(bound.value))
        report[name] = {
            "K": list(grids),
            "certified_bound": bounds,
            "distance_sampled": sampled,
            "order_certified": fitted_order(grids, bounds),
            "order_sampled": fitted_order(grids, sampled),
        }
    return {"target": target.name, "methods": report}


def fitted_order(grids: Sequence[int], errors: Sequence[float]) -> float:
    """The exponent r of error = c K^-r, by least squares in logarithms.

    Example:
        >>> round(fitted_order([4, 8, 16], [1 / 16, 1 / 64, 1 / 256]), 6)
        2.0
    """
    slope, _ = np.polyfit(np.log(np.asarray(grids)), np.log(np.asarray(errors)), 1)
    return -float(slope)


def by_case(report: dict[str, Any]) -> dict[tuple[str, float], dict[str, dict[str, Any]]]:
    """The rows of each target and tolerance, by method."""
    found: dict[tuple[str, float], dict[str, dict[str, Any]]] = {}
    for row in report["rows"]:
        found.setdefault((row["target"], row["tol"]), {})[row["method"]] = row
    return found


def saving(rows: dict[str, dict[str, Any]]) -> float | None:
    """Parameters of the first method, the papers', over those of the cheapest."""
    sizes = [row.get("parameters") for row in rows.values()]
    if sizes[0] is None:
        return None
    return sizes[0] / min(size for size in sizes if size is not None)


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal: parameters and certified bound by method."""
    shown = Table(title="Parameters and certified bound by method, n = 2, d = 1, p = 2")
    shown.add_column("target")
    shown.add_column("tol", justify="right")
    cases = by_case(report)
    for method in next(iter(cases.values())):
        shown.add_column(method, justify="right")
    shown.add_column("first / cheapest", justify="right")
    for (name, tol), rows in cases.items():
        ratio = saving(rows)
        shown.add_row(
            f"{name}{' (kinks)' if name in KINKS else ''}",
            f"{tol:g}",
            *(_cell(row) for row in rows.values()),
            "" if ratio is None else f"{ratio:.0f}x",
        )
    orders_found = report["orders"]["methods"].items()
    shown.caption = "Orders on " + report["orders"]["target"] + ", certified (sampled): "
    shown.caption += "; ".join(
        f"{name} {way['order_certified']:.2f} ({way['order_sampled']:.2f})"
        for name, way in orders_found
    )
    return shown


def _cell(row: dict[str, Any]) -> str:
    if row["refusal"] is not None:
        return "does not reach it"
    return f"{row['parameters']:,}\n{row['certified_bound']}"


@figures.styled
def picture(report: dict[str, Any], path: Path) -> None:
    """Certified bounds and sampled errors against K, log-log, with the fitted orders."""
    figure = Figure(figsize=(8.6, 4.8))
    axes = figure.subplots()
    ways = report["orders"]["methods"]
    for place, (name, way) in enumerate(ways.items()):
        look = figures.curve(place, len(ways))
        label = f"{name}:\norder {way['order_certified']:.2f}"
        axes.plot(way["K"], way["certified_bound"], label=label, **look)
        look |= {"linestyle": ":", "markerfacecolor": "white"}
        axes.plot(way["K"], way["distance_sampled"], **look)
    figures.logarithmic(axes.xaxis, base=2)
    figures.tick_each(axes.xaxis, [K for way in ways.values() for K in way["K"]])
    figures.logarithmic(axes.yaxis)
    axes.set_xlabel("K, cells per axis")
    axes.set_ylabel("$d_2(f, g)$: certified (line), sampled (dotted)")
    figures.title(axes, f"{report['orders']['target']}, n = 2, d = 1")
    figures.legend_beside(axes)
    figures.write(figure, path)
