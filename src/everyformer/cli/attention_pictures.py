"""Drawings of attention: B and C as matrices, row sums, and what equal tokens become."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from everyformer import figures
from everyformer.checks.report import Report
from everyformer.checks.subject import Subject
from everyformer.explore.attention_page import bias_and_gain as matrices_of
from everyformer.figures import COLOURS, save
from everyformer.layers.attention import RelativeAttention
from everyformer.layers.gains import ToeplitzGain

__all__ = ["of_subject", "save", "spreads"]

MAX_HEADS = 4


def of_subject(subject: Subject) -> dict[str, Figure]:
    """All pictures of a module, by the names of their files."""
    found = {"equal_tokens.png": equal_tokens(subject)}
    layers = [] if subject.module is None else list(subject.module.modules())
    attention = next((one for one in layers if isinstance(one, RelativeAttention)), None)
    if attention is not None:
        tables = bias_and_gain(attention, subject.seq_len)
        if tables is not None:
            found["bias_and_gain.png"] = tables
        if isinstance(attention.gain, ToeplitzGain):
            found["position_head.png"] = position_head(subject.seq_len, attention.causal)
    return found


@figures.styled
def bias_and_gain(layer: RelativeAttention, n: int) -> Figure | None:
    """B and C of each head as n x n matrices (Figure 2 of Luo et al. 2022)."""
    found = dict(zip("BC", matrices_of(layer, n), strict=True))
    rows = [(name, matrices) for name, matrices in found.items() if matrices is not None]
    if not rows:
        return None
    heads = min(layer.num_heads, MAX_HEADS)
    figure = Figure(figsize=(1.2 + 2.6 * heads, 2.6 * len(rows)))
    panels: Any = figure.subplots(len(rows), heads, squeeze=False)
    for row, (name, matrices) in zip(panels, rows, strict=True):
        middle = 0.0 if name == "B" else 1.0
        reach = float(np.abs(matrices - middle).max())
        scale = Normalize(middle - (reach or 1.0), middle + (reach or 1.0))
        same = "" if reach else f" = {middle:g}"
        for h, axes in enumerate(row):
            shown = matrices[min(h, len(matrices) - 1)]
            _matrix(axes, shown, cmap="RdBu_r", norm=scale)
            figures.title(axes, f"{name}{same}, head {h + 1}")
        figure.colorbar(ScalarMappable(scale, "RdBu_r"), ax=list(row), shrink=0.8)
    return figure


def _matrix(axes: Axes, entries: np.ndarray, **look: Any) -> None:
    """An n x n matrix; queries and keys are counted from 1."""
    n = len(entries)
    axes.imshow(entries, extent=(0.5, n + 0.5, n + 0.5, 0.5), **look)
    figures.whole_numbers(axes.xaxis, axes.yaxis)
    axes.grid(visible=False)
    axes.set_xlabel("key j")
    axes.set_ylabel("query i")


@figures.styled
def position_head(n: int, causal: bool) -> Figure:
    """Row sums A 1 of the head that makes positions (Luo et al. 2022, Proposition 4)."""
    i = np.arange(n)
    seen = i[:, None] >= i if causal else np.ones((n, n), dtype=bool)
    gain = np.eye(n) if causal else np.tril(np.ones((n, n)), -1)
    A = seen / seen.sum(axis=1, keepdims=True) * gain
    figure = Figure(figsize=(7.6, 3.2))
    left, right = figure.subplots(1, 2)
    _matrix(left, A, cmap="Blues", vmin=0)
    figures.title(left, "A = softmax * C, W_Q = W_K = 0")
    sums = A.sum(axis=1)
    zero = sums == 0
    right.vlines(i[~zero] + 1, 0, sums[~zero], color=COLOURS[0])
    right.plot(i[~zero] + 1, sums[~zero], "o", color=COLOURS[0])
    right.plot(i[zero] + 1, sums[zero], "o", color=COLOURS[0], mfc="white", zorder=3)
    for k in np.flatnonzero(zero):
        right.annotate("0", (k + 1, 0), (0, 6), textcoords="offset points", ha="center")
    right.set_ylim(bottom=min(0.0, -0.04 * sums.max()))
    figures.whole_numbers(right.xaxis)
    figures.title(right, "row sums A 1: all different")
    right.set_xlabel("position i")
    return figure


@figures.styled
def equal_tokens(subject: Subject, draws: int = 3) -> Figure:
    """The first coordinate of g(1 x^T) by position, for some draws of the weights."""
    rng = np.random.default_rng(0)
    X = np.tile(rng.standard_normal(subject.d_model), (subject.seq_len, 1))
    figure = Figure(figsize=(7.6, 3.2))
    axes = figure.subplots()
    for seed in range(draws):
        out = subject.redrawn(seed).output(X)[:, 0]
        spread = float(np.ptp(out))
        label = f"seed {seed}: spread {spread:.1g}" if spread else f"seed {seed}: all equal"
        look = figures.curve(seed, draws)
        axes.plot(np.arange(1, len(X) + 1), out, **look, label=label)
    figures.title(axes, f"{subject.name}: outputs on equal tokens, weights drawn at random")
    figures.whole_numbers(axes.xaxis)
    axes.set_xlabel("position")
    axes.set_ylabel("first coordinate")
    figures.legend_beside(axes)
    return figure


@figures.styled
def spreads(reports: Sequence[Report]) -> Figure:
    """The largest difference of rows on equal tokens, by layer; exact zeros are marked."""
    names = [report.subject for report in reports]
    sizes = np.array([report["EF003"].violation_sampled or 0.0 for report in reports])
    zero = figures.place_of_zero(sizes.tolist())
    rows = np.arange(len(names))
    figure = Figure(figsize=(7.6, 1 + 0.26 * len(names)))
    axes = figure.subplots()
    colours = [COLOURS[1] if size > 1e-6 else COLOURS[0] for size in sizes]
    axes.barh(rows, np.where(sizes > 0, sizes, np.nan), left=zero / 10, color=colours)
    axes.plot(
        np.full((sizes == 0).sum(), zero), rows[sizes == 0], "o", mfc="white", mec="k"
    )
    figures.logarithmic(axes.xaxis)
    if (sizes == 0).any():
        figures.mark_zero(axes.xaxis, zero)
    else:
        axes.set_xlim(left=10 * zero)
    axes.set_yticks(rows, names, parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    figures.title(axes, "spread of the outputs on equal tokens")
    axes.set_xlabel("largest difference between rows (log scale)")
    return figure
