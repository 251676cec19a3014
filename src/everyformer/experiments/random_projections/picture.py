"""The gap against the size of the set: sampled quantiles, and the union bound."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

LINES = {
    "gap_median_sampled": ("median, sampled", "^:"),
    "gap_quantile_sampled": ("5% quantile, sampled", "o-"),
    "gap_quantile_bound": ("5% quantile, proved at least", "s--"),
}


def picture(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The median over seeds, a panel for each length."""
    lengths = sorted({r["labels"]["n"] for r in results}) or [0]
    figure = Figure(figsize=(4.4 * len(lengths), 3.6), layout="constrained")
    panels = figure.subplots(1, len(lengths), squeeze=False, sharey=True)[0]
    for n, axes in zip(lengths, panels, strict=True):
        own = [r for r in results if r["labels"]["n"] == n]
        sizes = sorted({r["labels"]["contexts"] for r in own})
        for name, (label, style) in LINES.items():
            values = [
                statistics.median(
                    r["more"][name] for r in own if r["labels"]["contexts"] == size
                )
                for size in sizes
            ]
            axes.plot(sizes, values, style, ms=4, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(f"n = {n}", fontsize=9)
        axes.set_xlabel("contexts in the set")
        axes.grid(visible=True, alpha=0.3)
    panels[0].set_ylabel("gap of a Gaussian $W_P$")
    panels[0].legend(fontsize=7)
    figure.savefig(path, dpi=120)
