"""Drawings: the function beside the network, and how ids move."""

from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from everyformer.construct.comparison import Comparison
from everyformer.construct.optimality import Ratio
from everyformer.model.network import Network, StageState
from everyformer.narration.numbers import number
from everyformer.progress import Progress, no_progress
from everyformer.targets.target import Target

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which colour-blind readers can tell apart; one for each token."""

POINTS = 400
FEWEST_POINTS = 33
FLOAT_WORK = 5e9
EXACT_WORK = 1e5
"""Points times tokens times blocks that a picture may cost: a few seconds."""

SHOWN_COORDINATES = 3
TITLE: dict[str, Any] = {"loc": "left", "fontsize": 11, "parse_math": False}


def save(figure: Figure, file: IO[bytes]) -> None:
    """Write a picture as PNG."""
    figure.savefig(file, format="png", dpi=150)


def along_a_line(
    target: Target, network: Network, progress: Progress = no_progress
) -> Figure:
    """f and g while the first coordinate of the first token sweeps its interval.

    The other tokens stay at different values off the cells' edges. A panel for each of
    the first coordinates, a colour for each of the first tokens.
    """

    def drawing(what: str, done: int, total: int) -> None:
        progress(f"draw: {what}", done, total)

    x = _line(target, _affordable_points(network))
    fine = _line(target, POINTS)
    f, g = target(fine), network(x, drawing)
    rows = min(target.d_model, SHOWN_COORDINATES)
    figure = Figure(figsize=(7.2, 1.2 + 3.2 * rows), layout="tight")
    panels: Any = figure.subplots(rows, 1, sharex=True, squeeze=False)
    for i, axes in enumerate(panels[:, 0]):
        for j, colour in zip(range(target.seq_len), COLOURS, strict=False):
            axes.plot(x[:, 0, 0], g[:, j, i], color=colour, lw=1.6)
            axes.plot(fine[:, 0, 0], f[:, j, i], color=colour, lw=1.1, ls="--")
        which = f", coordinate {i + 1}" if target.d_model > 1 else ""
        axes.set_ylabel(f"output{which}")
        _tidy(axes)
    panels[0, 0].set_title(_heading(network, "f and the network g"), **TITLE)
    panels[-1, 0].set_xlabel(_sweep_label(x))
    _legend(panels[0, 0], min(target.seq_len, len(COLOURS)))
    return figure


def comparison(found: Comparison) -> Figure:
    """Planned bounds of d_p(f, g) against parameters, one line for each method.

    Below: parameters over the lower bound of Section 5.4, against K.
    """
    figure = Figure(figsize=(7.2, 7.2), layout="tight")
    axes, lower = figure.subplots(2, 1)
    _ratios(lower, found.ratios)
    for place, candidate in enumerate(found.candidates):
        if not candidate.curve:
            continue
        sizes = [point.plan.count().parameters for point in candidate.curve]
        bounds = [float(point.bound.value) for point in candidate.curve]
        axes.plot(
            sizes,
            bounds,
            color=COLOURS[place % len(COLOURS)],
            ls=("-", "--", ":")[place // len(COLOURS) % 3],
            marker="o",
            ms=4,
            lw=1.6,
            label=candidate.method.title,
        )
    axes.axhline(float(found.tol), color="0.4", lw=1, ls=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("parameters")
    axes.set_ylabel(f"planned bound of $d_{{{found.exponent}}}(f, g)$")
    axes.set_title(f"{found.target}: what a tolerance costs, by method", **TITLE)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    _tidy(axes)
    return figure


def _ratios(axes: Axes, rows: Sequence[Ratio]) -> None:
    """Parameters / lower bound of both constructions."""
    K = [row.grid for row in rows]
    lines = {
        "Yun et al.": [row.numbers[0] for row in rows],
        "residual network": [row.numbers[1] for row in rows],
    }
    for (name, values), colour in zip(lines.items(), COLOURS, strict=False):
        axes.plot(K, values, color=colour, marker="o", ms=4, lw=1.6, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("K, cells per axis")
    axes.set_ylabel("parameters / lower bound")
    axes.set_title("Section 5.4: optimal in order where this is flat", **TITLE)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    _tidy(axes)


def moving_ids(steps: Sequence[StageState], network: Network) -> Figure:
    """The id of every token of one sequence against the number of the shift."""
    assert network.construction is not None, "ids come with a construction"  # noqa: S101
    ids = np.array([step.ids for step in steps], dtype=np.float64)  # [shifts + 1, n]
    figure = Figure(figsize=(7.2, 4.4), layout="tight")
    axes = figure.subplots()
    shifts = np.arange(len(ids))
    for j in range(ids.shape[1]):
        axes.plot(
            shifts,
            ids[:, j],
            color=COLOURS[j % len(COLOURS)],
            drawstyle="steps-post",
            lw=1.8,
            marker="o",
            ms=4,
            markevery=[0, *(np.flatnonzero(np.diff(ids[:, j])) + 1).tolist()],
            label=f"token {j + 1}: {number(ids[0, j])} to {number(ids[-1, j])}",
        )
    axes.set_yscale("symlog", linthresh=1 / network.construction.grid)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("number of the selective shift (0: before the first)")
    axes.set_ylabel("id $u^T z$ of the token")
    axes.set_title(_heading(network, "selective shifts"), **TITLE)
    if ids.shape[1] <= len(COLOURS):
        axes.legend(frameon=False, fontsize=9)
    _tidy(axes)
    return figure


def _affordable_points(network: Network) -> int:
    work = EXACT_WORK if network.is_exact else FLOAT_WORK
    limit = int(work / (network.architecture.seq_len * network.blocks))
    return max(FEWEST_POINTS, min(POINTS, limit))


def _line(target: Target, points: int) -> np.ndarray:
    """Sequences on a line through the domain, shape (points, n, d)."""
    n, d = target.seq_len, target.d_model
    low, high = np.asarray(target.domain.lows), np.asarray(target.domain.highs)
    # Tokens 2..n are 1/(n-1) > 1/K apart, hence in different cells; 0.4 keeps them off
    # the edges of dyadic cells, where a picture of the ramps would mislead.
    share = np.empty((n, d))
    share[:, 0] = (np.arange(n) - 0.4) / max(n - 1, 1)
    golden = 0.618034
    share[:, 1:] = (0.3 + golden * (np.arange(n)[:, None] + np.arange(1, d))) % 1
    x = np.repeat((low + (high - low) * share)[None], points, axis=0)
    x[:, 0, 0] = np.linspace(low[0], high[0], points)
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


def _heading(network: Network, what: str) -> str:
    spec, made = network.architecture, network.construction
    if made is None:
        return what
    sizes = f"n = {spec.seq_len}, d = {spec.d_model}, K = {made.grid}"
    return f"{made.target}: {what}\n{made.theorem} of {made.paper}, {sizes}"


def _legend(axes: Axes, tokens: int) -> None:
    handles = [
        Line2D([], [], color="0.3", lw=1.6, label="network g"),
        Line2D([], [], color="0.3", lw=1.1, ls="--", label="function f"),
    ]
    handles += [
        Line2D([], [], color=COLOURS[j], lw=4, label=f"token {j + 1}")
        for j in range(tokens)
    ]
    axes.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
        fontsize=9,
    )


def _tidy(axes: Axes) -> None:
    axes.grid(color="0.88", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
