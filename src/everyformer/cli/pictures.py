"""Drawings: the function beside the network, and how ids move."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from everyformer import figures
from everyformer.construct.comparison import Comparison
from everyformer.construct.optimality import Ratio
from everyformer.figures import COLOURS
from everyformer.figures import save as save
from everyformer.model.network import Network, StageState
from everyformer.narration.numbers import number
from everyformer.progress import Progress, no_progress
from everyformer.targets.target import Target

POINTS = 400
FEWEST_POINTS = 33
FLOAT_WORK = 5e9
EXACT_WORK = 1e5
"""Points times tokens times blocks that a picture may cost: a few seconds."""

SHOWN_COORDINATES = 3
EDGE = 1e-3
"""How far from the ends of its cell, in cells, a constant piece is drawn."""

LEAST_JUMP = 0.01
"""Of what a panel shows: smaller ones need no gap."""


@figures.styled
def along_a_line(
    target: Target, network: Network, progress: Progress = no_progress
) -> Figure:
    """f and g while the first coordinate of the first token sweeps its interval.

    The other tokens stay at different values off the cells' edges. A panel for each of
    the first coordinates, a colour for each of the first tokens.
    """

    def drawing(what: str, done: int, total: int) -> None:
        progress(f"draw: {what}", done, total)

    low, high = float(target.domain.lows[0]), float(target.domain.highs[0])
    sweep = _sweep(network, low, high)
    fine = _around_jumps(
        lambda t: target(_sequences(target, t)), np.linspace(low, high, POINTS)
    )
    f = target(_sequences(target, fine))
    x = _sequences(target, sweep)
    g = network(x, drawing)
    nothing = _runs(sweep, ~g.any(axis=(1, 2)))
    rows = min(target.d_model, SHOWN_COORDINATES)
    tokens = min(target.seq_len, len(COLOURS))
    figure = Figure(figsize=(7.6, 1.2 + 3.0 * rows))
    panels: Any = figure.subplots(rows, 1, sharex=True, squeeze=False)
    for i, axes in enumerate(panels[:, 0]):
        shown = np.concatenate([f[:, :tokens, i].ravel(), g[:, :tokens, i].ravel()])
        least = LEAST_JUMP * float(np.ptp(shown))
        for j in range(tokens):
            look = figures.curve(j, tokens, marked=False)
            wide = {"linewidth": 2.2 + look["linewidth"], "alpha": 0.45}
            steps = _jumps(sweep, g[:, j, i], least, 3 * EDGE * (high - low))
            solid = {**look, **wide, "solid_capstyle": "butt"}
            figures.plot_with_jumps(axes, sweep, g[:, j, i], steps, **solid)
            leaps = _jumps(fine, f[:, j, i], least, 1e-9 * (high - low))
            dashed = {"color": look["color"], "linewidth": 1.1, "linestyle": "--"}
            figures.plot_with_jumps(axes, fine, f[:, j, i], leaps, **dashed, zorder=3)
        for start, end in nothing:
            axes.axvspan(start, end, color="0.93", zorder=0)
        which = f", coordinate {i + 1}" if target.d_model > 1 else ""
        axes.set_ylabel(f"output{which}")
    figures.title(panels[0, 0], _heading(network, target.name, "f and the network g"))
    panels[-1, 0].set_xlabel(_sweep_label(x))
    _legend(panels[0, 0], tokens, zeros=bool(nothing))
    return figure


@figures.styled
def comparison(found: Comparison) -> Figure:
    """Planned bounds of d_p(f, g) against parameters, one line for each method.

    A bound far below the tolerance is a triangle at the lower edge, with its number.
    Below: parameters over the lower bound of Section 5.4, against K.
    """
    figure = Figure(figsize=(8.4, 7.6))
    axes, lower = figure.subplots(2, 1, height_ratios=[3, 2])
    _ratios(lower, found.ratios)
    drawn = [candidate for candidate in found.candidates if candidate.curve]
    floor, notes = float(found.tol) / 10, 0
    for place, candidate in enumerate(drawn):
        sizes = [point.plan.count().parameters for point in candidate.curve]
        bounds = [float(point.bound.value) for point in candidate.curve]
        look = figures.curve(place, len(drawn))
        axes.plot(
            sizes,
            [bound if bound >= floor else np.nan for bound in bounds],
            **look,
            label=candidate.method.title,
        )
        for size, point, bound in zip(sizes, candidate.curve, bounds, strict=True):
            if bound < floor:
                axes.plot(size, floor, "v", color=look["color"], ms=9, clip_on=False)
                told = f"bound {point.bound.format_value()}, far below"
                above = (9, 3 + 13 * notes)  # one over the other, whatever their sizes
                axes.annotate(
                    told, (size, floor), above, textcoords="offset points", fontsize=9,
                    color=look["color"],
                )  # fmt: skip
                notes += 1
    axes.axhline(float(found.tol), color="0.4", lw=1, ls=":", label="the tolerance")
    figures.logarithmic(axes.xaxis)
    figures.logarithmic(axes.yaxis)
    axes.set_ylim(bottom=floor)
    axes.set_xlabel("parameters")
    axes.set_ylabel(f"planned bound of $d_{{{found.exponent}}}(f, g)$")
    figures.title(axes, f"{found.target}: what a tolerance costs, by method")
    figures.legend_beside(axes)
    return figure


def _ratios(axes: Axes, rows: Sequence[Ratio]) -> None:
    """Parameters / lower bound of both constructions."""
    K = [row.grid for row in rows]
    lines = {
        "Yun et al.": [row.numbers[0] for row in rows],
        "residual network": [row.numbers[1] for row in rows],
    }
    for place, (name, values) in enumerate(lines.items()):
        axes.plot(K, values, label=name, **figures.curve(place, len(lines)))
    figures.logarithmic(axes.xaxis, base=2)
    figures.tick_each(axes.xaxis, K)
    figures.logarithmic(axes.yaxis)
    axes.set_xlabel("K, cells per axis")
    axes.set_ylabel("parameters / lower bound")
    figures.title(axes, "Section 5.4: optimal in order where this is flat")
    figures.legend_beside(axes)


@figures.styled
def moving_ids(steps: Sequence[StageState], network: Network) -> Figure:
    """The id of every token of one sequence against the number of the shift."""
    assert network.construction is not None, "ids come with a construction"  # noqa: S101
    ids = np.array([step.ids for step in steps], dtype=np.float64)  # [shifts + 1, n]
    n = ids.shape[1]
    figure = Figure(figsize=(7.6, 4.4))
    axes = figure.subplots()
    shifts = np.arange(len(ids))
    for j in range(n):
        moves = np.flatnonzero(np.diff(ids[:, j])) + 1
        axes.plot(
            shifts,
            ids[:, j],
            **figures.curve(j, n),
            drawstyle="steps-post",
            markevery=[0, *moves.tolist()],
            label=f"token {j + 1}: {number(ids[0, j])} to {number(ids[-1, j])}",
        )
    axes.set_yscale("symlog", linthresh=1 / network.construction.grid)
    figures.readable_ticks(axes.yaxis)
    figures.whole_numbers(axes.xaxis)
    axes.set_xlabel("number of the selective shift (0: before the first)")
    axes.set_ylabel("id $u^T z$ of the token")
    name = network.construction.target
    figures.title(axes, _heading(network, name, "selective shifts"))
    if n <= 2 * len(COLOURS):
        figures.legend_beside(axes)
    return figure


def _affordable_points(network: Network) -> int:
    work = EXACT_WORK if network.is_exact else FLOAT_WORK
    limit = int(work / (network.architecture.seq_len * network.blocks))
    return max(FEWEST_POINTS, min(POINTS, limit))


def _sweep(network: Network, low: float, high: float) -> np.ndarray:
    """Where g is drawn: evenly, and at both ends of each cell where there is room."""
    points = _affordable_points(network)
    even = np.linspace(low, high, points)
    grid = 0 if network.construction is None else network.construction.grid
    if not 0 < 2 * grid <= points:
        return even
    ends = np.arange(grid)[:, None] + np.array([EDGE, 1 - EDGE])  # [K, 2], in cells
    share = (even - low) / (high - low) * grid % 1
    inside = np.abs(share - 0.5) < 0.5 - EDGE
    return np.sort(np.concatenate([even[inside], low + (high - low) / grid * ends.ravel()]))


def _jumps(x: np.ndarray, y: np.ndarray, least: float, near: float) -> np.ndarray:
    """Every i with y[i] and y[i + 1] more than `least` apart, and x less than `near`."""
    return np.flatnonzero((np.abs(np.diff(y)) > least) & (np.diff(x) < near))


def _runs(x: np.ndarray, holds: np.ndarray) -> list[tuple[Any, Any]]:
    """First and last x of every run of points where something holds."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], holds, [False]])))
    return [(x[a], x[b - 1]) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _around_jumps(
    f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, halvings: int = 40
) -> np.ndarray:
    """Points with two close neighbours at every place where f seems to jump.

    Gaps across which an entry of f changes much are halved towards the larger change: at
    a jump the change stays, on a steep slope it vanishes.
    """
    values = f(x).reshape(len(x), -1)
    large = LEAST_JUMP * np.maximum(np.ptp(values, axis=0), 1e-300)
    places = np.flatnonzero((np.abs(np.diff(values, axis=0)) > large).any(axis=1))
    a, b = x[places], x[places + 1]
    for _ in range(halvings if places.size else 0):
        middle = (a + b) / 2
        at_a, at_b, at_middle = (f(t).reshape(len(t), -1) for t in (a, b, middle))
        left = (np.abs(at_middle - at_a) / large).max(axis=1)
        right = (np.abs(at_b - at_middle) / large).max(axis=1)
        a, b = np.where(left > right, a, middle), np.where(left > right, middle, b)
    return np.unique(np.concatenate([x, a, b]))


def _sequences(target: Target, sweep: np.ndarray) -> np.ndarray:
    """Sequences on a line through the domain, shape (points, n, d)."""
    n, d = target.seq_len, target.d_model
    low, high = np.asarray(target.domain.lows), np.asarray(target.domain.highs)
    # Tokens 2..n are 1/(n-1) > 1/K apart, hence in different cells; 0.4 keeps them off
    # the edges of dyadic cells, where a picture of the ramps would mislead.
    share = np.empty((n, d))
    share[:, 0] = (np.arange(n) - 0.4) / max(n - 1, 1)
    golden = 0.618034
    share[:, 1:] = (0.3 + golden * (np.arange(n)[:, None] + np.arange(1, d))) % 1
    x = np.repeat((low + (high - low) * share)[None], len(sweep), axis=0)
    x[:, 0, 0] = sweep
    return x


def _sweep_label(x: np.ndarray) -> str:
    n, d = x.shape[1:]
    what = "token 1" if d == 1 else "coordinate 1 of token 1"
    if n == 1:
        return what
    if d == 1 and n <= len(COLOURS):
        fixed = ", ".join(f"{value:.3g}" for value in x[0, 1:, 0])
        return f"{what} ({'the others stay' if n > 2 else 'token 2 stays'} at {fixed})"
    return f"{what} (all else stays)"


def _heading(network: Network, target: str, what: str) -> str:
    spec, made = network.architecture, network.construction
    sizes = f"n = {spec.seq_len}, d = {spec.d_model}"
    if made is None:
        return f"{target}: {what}, {sizes}"
    how = made.theorem if made.paper == "everyformer" else f"{made.theorem} of {made.paper}"
    return f"{target}: {what}\n{how}, {sizes}, K = {made.grid}"


def _legend(axes: Axes, tokens: int, *, zeros: bool) -> None:
    handles: list[Line2D | Patch] = [
        Line2D([], [], color="0.3", lw=4.5, alpha=0.45, label="network g"),
        Line2D([], [], color="0.3", lw=1.1, ls="--", label="function f"),
    ]
    handles += [
        Line2D([], [], color=COLOURS[j], lw=4, label=f"token {j + 1}")
        for j in range(tokens)
    ]
    if zeros:
        handles.append(Patch(color="0.93", label="g = 0, exactly"))
    figures.legend_beside(axes, handles)
