"""Accuracy and ceiling against the number of layers, a panel for each pattern."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def picture(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Measured accuracy with dots; the ceiling as a thin dashed line."""
    patterns = list(dict.fromkeys(r["labels"]["pattern"] for r in results)) or ["strided"]
    figure = Figure(figsize=(2.6 * len(patterns), 3.2), layout="constrained")
    panels = figure.subplots(1, len(patterns), squeeze=False, sharey=True)[0]
    for pattern, axes in zip(patterns, panels, strict=True):
        own = [r for r in results if r["labels"]["pattern"] == pattern]
        axes.set_title(pattern, fontsize=9)
        axes.set_xlabel("layers")
        axes.set_ylim(0, 1.03)
        for way in dict.fromkeys(r["labels"]["configuration"] for r in own):
            rows = [r for r in own if r["labels"]["configuration"] == way]
            layers = [r["labels"]["layers"] for r in rows]
            (line,) = axes.plot(
                layers, [r["value_sampled"] for r in rows], marker="o", ls="", label=way
            )
            axes.plot(
                layers,
                [r["more"]["ceiling"] for r in rows],
                ls="--",
                lw=0.9,
                color=line.get_color(),
            )
        axes.legend(fontsize=7)
    panels[0].set_ylabel("accuracy; dashed: ceiling")
    figure.savefig(path, dpi=120)
