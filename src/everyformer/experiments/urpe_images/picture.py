"""Accuracy of each arm on images in the middle and on moved ones."""

import statistics
from pathlib import Path

from matplotlib.figure import Figure

from everyformer import figures
from everyformer.experiments.curves import Results, having


@figures.styled
def picture(results: Results, path: Path) -> None:
    """Two bars for each arm, a dot for each seed; a dotted line at chance."""
    figure = Figure(figsize=(6.8, 3.2))
    axes = figure.subplots()
    arms = list(dict.fromkeys(r["labels"]["method"] for r in results))
    for shift, metric in ((-0.2, "accuracy"), (0.2, "moved")):
        for place, arm in enumerate(arms):
            own = having(results, method=arm)
            values = [r["more"]["test"][metric]["mean_sampled"] for r in own]
            colour = figures.colour(0 if metric == "accuracy" else 1)
            told = {"accuracy": "in the middle", "moved": "moved"}[metric]
            axes.bar(
                place + shift, statistics.fmean(values), 0.36, color=colour, alpha=0.6,
                label=told if not place else None,
            )  # fmt: skip
            axes.plot([place + shift] * len(values), values, "k.", ms=4)
    if results:
        chance = results[0]["more"]["chance"]
        axes.axhline(chance, color="0.3", ls=":", lw=1, label="chance")
        figures.legend_beside(axes)
    axes.set_xticks(range(len(arms)), arms)
    axes.set_ylabel("accuracy")
    axes.set_ylim(0, 1.02)
    figures.write(figure, path)
