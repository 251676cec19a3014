"""The gap against the depth, logarithmic; collisions have a tick of their own, 0."""

import statistics
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from everyformer import figures
from everyformer.experiments.curves import Results, having


@figures.styled
def picture(results: Results, path: Path) -> None:
    """The median over seeds, a panel for each stack."""
    stacks = list(dict.fromkeys(r["labels"]["stack"] for r in results)) or ["alone"]
    mixers = list(dict.fromkeys(r["labels"]["mixer"] for r in results))
    zero = figures.place_of_zero([r["value_sampled"] for r in results])
    figure = Figure(figsize=(2 + 3.6 * len(stacks), 3.6))
    panels = figure.subplots(1, len(stacks), squeeze=False, sharey=True)[0]
    for stack, axes in zip(stacks, panels, strict=True):
        own = having(results, stack=stack)
        figures.title(axes, f"mixers {stack}")
        axes.set_xlabel("depth")
        figures.whole_numbers(axes.xaxis)
        for place, mixer in enumerate(mixers):
            gaps: dict[int, list[float]] = {}
            for result in having(own, mixer=mixer):
                found = gaps.setdefault(result["labels"]["depth"], [])
                found.append(result["value_sampled"])
            depths = np.array(sorted(gaps))
            medians = np.array([statistics.median(gaps[depth]) for depth in depths])
            figures.plot_with_zeros(
                axes, depths, medians, zero, place, len(mixers), label=mixer
            )
    figures.logarithmic(panels[0].yaxis)
    if any(r["value_sampled"] == 0 for r in results):
        figures.mark_zero(panels[0].yaxis, zero)
    panels[0].set_ylabel("gap / largest output (0: collision)")
    figures.one_legend(figure)
    figures.write(figure, path)
