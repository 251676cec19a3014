"""Accuracy and ceiling against the number of layers, a panel for each pattern."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from everyformer import figures
from everyformer.experiments.curves import Results, having

APART = 0.16
"""Between the ways of one number of layers: their dots would cover each other."""


@figures.styled
def picture(results: Results, path: Path) -> None:
    """Measured accuracy as dots; the ceiling as a short line above or through each."""
    patterns = list(dict.fromkeys(r["labels"]["pattern"] for r in results)) or ["strided"]
    ways = list(dict.fromkeys(r["labels"]["configuration"] for r in results))
    figure = Figure(figsize=(1.6 + 2.3 * len(patterns), 3.2))
    panels = figure.subplots(1, len(patterns), squeeze=False, sharey=True)[0]
    for pattern, axes in zip(patterns, panels, strict=True):
        own = having(results, pattern=pattern)
        figures.title(axes, pattern)
        axes.set_xlabel("layers")
        axes.set_ylim(-0.03, 1.05)
        depths = [r["labels"]["layers"] for r in own] or [1]
        axes.set_xlim(min(depths) - 0.5, max(depths) + 0.5)
        figures.whole_numbers(axes.xaxis)
        for place, way in enumerate(ways):
            rows = having(own, configuration=way)
            aside = APART * (place - (len(ways) - 1) / 2)
            layers = [r["labels"]["layers"] + aside for r in rows]
            look = {"color": figures.colour(place), "linestyle": ""}
            accuracy = [r["value_sampled"] for r in rows]
            axes.plot(layers, accuracy, "o", ms=4.5, label=way if rows else None, **look)
            ceilings = [r["more"]["ceiling"] for r in rows]
            axes.plot(layers, ceilings, "_", ms=11, mew=1.3, **look)
    panels[0].set_ylabel("accuracy")
    panels[-1].add_line(
        Line2D([], [], color="0.3", marker="_", ms=11, ls="", label="ceiling")
    )
    figures.one_legend(figure)
    figures.write(figure, path)
