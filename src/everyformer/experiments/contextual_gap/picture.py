"""The gap against the depth, logarithmic; collisions at the bottom."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

BOTTOM = 1e-12
"""Where a gap of 0 is drawn."""


def picture(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The median over seeds, a panel for each stack."""
    stacks = list(dict.fromkeys(r["labels"]["stack"] for r in results)) or ["alone"]
    figure = Figure(figsize=(4.2 * len(stacks), 3.4), layout="constrained")
    panels = figure.subplots(1, len(stacks), squeeze=False, sharey=True)[0]
    for stack, axes in zip(stacks, panels, strict=True):
        own = [r for r in results if r["labels"]["stack"] == stack]
        axes.set_title(f"mixers {stack}", fontsize=9)
        axes.set_xlabel("depth")
        axes.set_yscale("log")
        for mixer in dict.fromkeys(r["labels"]["mixer"] for r in own):
            gaps: dict[int, list[float]] = {}
            for result in own:
                if result["labels"]["mixer"] == mixer:
                    found = gaps.setdefault(result["labels"]["depth"], [])
                    found.append(max(result["value_sampled"], BOTTOM))
            depths = sorted(gaps)
            medians = [statistics.median(gaps[depth]) for depth in depths]
            axes.plot(depths, medians, marker="o", ms=3, label=mixer)
        axes.legend(fontsize=7)
    panels[0].set_ylabel("gap / largest output (bottom: collision)")
    figure.savefig(path, dpi=120)
