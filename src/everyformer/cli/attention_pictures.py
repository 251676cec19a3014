"""Drawings of attention: B and C as matrices, row sums, and what equal tokens become."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from everyformer.checks.report import Report
from everyformer.checks.subject import Subject
from everyformer.cli.pictures import COLOURS, TITLE, save
from everyformer.layers.attention import RelativeAttention
from everyformer.layers.gains import ToeplitzGain

__all__ = ["of_subject", "save", "spreads"]

MAX_HEADS = 4
LEAST_SPREAD = 1e-17


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


def bias_and_gain(layer: RelativeAttention, n: int) -> Figure | None:
    """B and C of each head as n x n matrices (Figure 2 of Luo et al. 2022)."""
    weight = layer.in_proj_weight
    q = torch.zeros(1, layer.num_heads, n, layer.head_dim, dtype=weight.dtype)
    rows: list[tuple[str, np.ndarray]] = []
    with torch.no_grad():
        vector = None if layer.encoding is None else layer.encoding.offset_bias(q)
        if vector is not None:
            i = np.arange(n)
            rows.append(("B", vector.numpy()[:, i[:, None] - i + n - 1]))
        if isinstance(layer.gain, ToeplitzGain):
            rows.append(("C", layer.gain.matrix(n)[0].numpy()))
    if not rows:
        return None
    heads = min(layer.num_heads, MAX_HEADS)
    figure = Figure(figsize=(1.2 + 2.6 * heads, 2.6 * len(rows)), layout="constrained")
    panels: Any = figure.subplots(len(rows), heads, squeeze=False)
    for row, (name, matrices) in zip(panels, rows, strict=True):
        middle = 0.0 if name == "B" else 1.0
        reach = max(float(np.abs(matrices - middle).max()), 1e-12)
        scale = Normalize(middle - reach, middle + reach)
        for h, axes in enumerate(row):
            shown = matrices[min(h, len(matrices) - 1)]
            axes.imshow(shown, cmap="RdBu_r", norm=scale)
            axes.set_title(f"{name}, head {h + 1}", **TITLE)
            axes.set_xlabel("key j")
            axes.set_ylabel("query i")
        figure.colorbar(ScalarMappable(scale, "RdBu_r"), ax=list(row), shrink=0.8)
    return figure


def position_head(n: int, causal: bool) -> Figure:
    """Row sums A 1 of the head that makes positions (Luo et al. 2022, Proposition 4)."""
    i = np.arange(n)
    seen = i[:, None] >= i if causal else np.ones((n, n), dtype=bool)
    gain = np.eye(n) if causal else np.tril(np.ones((n, n)), -1)
    A = seen / seen.sum(axis=1, keepdims=True) * gain
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.imshow(A, cmap="Blues")
    left.set_title("A = softmax * C, W_Q = W_K = 0", **TITLE)
    left.set_xlabel("key j")
    left.set_ylabel("query i")
    right.stem(i + 1, A.sum(axis=1), basefmt=" ")
    right.set_title("row sums A 1: all different", **TITLE)
    right.set_xlabel("position i")
    return figure


def equal_tokens(subject: Subject, draws: int = 3) -> Figure:
    """The first coordinate of g(1 x^T) by position, for some draws of the weights."""
    rng = np.random.default_rng(0)
    X = np.tile(rng.standard_normal(subject.d_model), (subject.seq_len, 1))
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes = figure.subplots()
    for seed, colour in zip(range(draws), COLOURS, strict=False):
        out = subject.redrawn(seed).output(X)[:, 0]
        label = f"weights of seed {seed}"
        axes.plot(np.arange(1, len(X) + 1), out, "o-", color=colour, ms=4, label=label)
    axes.set_title(f"{subject.name}: outputs on equal tokens", **TITLE)
    axes.set_xlabel("position")
    axes.set_ylabel("first coordinate")
    axes.legend(frameon=False, fontsize=9)
    return figure


def spreads(reports: Sequence[Report]) -> Figure:
    """The largest difference of rows on equal tokens, for each layer."""
    names = [report.subject for report in reports]
    sizes = [report["EF003"].violation_sampled or 0.0 for report in reports]
    figure = Figure(figsize=(7.2, 1 + 0.26 * len(names)), layout="constrained")
    axes = figure.subplots()
    colours = [COLOURS[1] if size > 1e-6 else COLOURS[0] for size in sizes]
    axes.barh(names, np.maximum(sizes, LEAST_SPREAD), left=LEAST_SPREAD, color=colours)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_title("spread of the outputs on equal tokens", **TITLE)
    axes.set_xlabel("largest difference between rows (log scale)")
    return figure
