"""The bars of Figure 1: a group for each arm and rate, a dot for each seed."""

import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from everyformer import figures
from everyformer.experiments.curves import Results, having


@figures.styled
def picture(results: Results, path: Path) -> None:
    """A panel for each task and |V|; a dotted line at chance."""
    labels = [r["labels"] for r in results]
    tasks = list(dict.fromkeys(x["task"] for x in labels)) or ["etp"]
    sizes = sorted({x["tokens"] for x in labels}) or [10]
    figure = Figure(figsize=(1 + 4.2 * len(sizes), 2.6 * len(tasks)))
    panels = figure.subplots(len(tasks), len(sizes), squeeze=False)
    for task, row in zip(tasks, panels, strict=True):
        for size, axes in zip(sizes, row, strict=True):
            figures.title(axes, f"{task.upper()}, |V| = {size:,}")
            axes.set_ylim(0, 1.02)
            _bars(axes, having(results, task=task, tokens=size))
    for row in panels:
        row[0].set_ylabel("accuracy")
    for axes in panels[-1]:
        axes.set_xlabel("arm, and rate of B and C, times that of the other weights")
    figures.one_legend(figure)
    figures.write(figure, path)


def _bars(axes: Any, results: Results) -> None:
    arms: dict[str, list[float]] = {}
    colours: dict[str, str] = {}
    for result in results:
        own = result["labels"]
        name = f"{own['method']}\n{own['rate']}"
        arms.setdefault(name, []).append(result["value_sampled"])
        colours[name] = figures.colour({"urpe": 0, "t5": 1}.get(own["method"], 2))
    for place, (name, values) in enumerate(arms.items()):
        mean = statistics.fmean(values)
        axes.bar(place, mean, 0.7, color=colours[name], alpha=0.6)
        axes.plot([place] * len(values), values, "k.", ms=4, label="one seed")
    axes.set_xticks(range(len(arms)), list(arms), fontsize=8)
    if results:
        chance = results[0]["more"]["chance"]
        axes.axhline(chance, color="0.3", ls=":", lw=1, label="chance")
