"""The error against updates, and the gain that URPE learnt for each distance."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from everyformer import figures
from everyformer.experiments.curves import Results, by_step, draw_band, having
from everyformer.layers.graphs.graph import RESERVED

FURTHEST = 20
"""The largest distance that is drawn: few pairs are further apart."""


@figures.styled
def picture(results: Results, path: Path) -> None:
    """Curves of all arms; then, where one has a gain, C by distance of the first seed."""
    main = [r for r in results if not r["labels"]["task"].endswith("-rate")]
    gained = [r for r in main if "C_by_distance" in r["more"]]
    rows = 2 if gained else 1
    figure = Figure(figsize=(11, 3.3 * rows))
    panels = figure.subplots(rows, 2).ravel()
    _curves(panels[0], main, "mae", "validation error")
    _curves(
        panels[1], main, "mae_without_structure", "the same without distances and edges"
    )
    if gained:
        _by_distance(panels[2], gained, "C", "learnt C by distance, a line for each head")
        _by_distance(panels[3], gained, "B", "learnt B by distance, a line for each head")
    figures.one_legend(figure)
    figures.write(figure, path)


def _curves(axes: Axes, results: Results, metric: str, title: str) -> None:
    """The mean of the seeds against updates; the band holds all seeds."""
    tasks = {r["labels"]["task"] for r in results}
    names = list(dict.fromkeys((r["labels"]["task"], r["labels"]["arm"]) for r in results))
    for place, (task, arm) in enumerate(names):
        if evaluated := by_step(having(results, task=task, arm=arm), metric):
            look = figures.curve(place, len(names), marked=False)
            label = arm if len(tasks) == 1 else f"{task} {arm}"
            draw_band(axes, evaluated, look, label)
    figures.title(axes, title)
    figures.whole_numbers(axes.xaxis, most=5)
    axes.set_xlabel("updates")
    axes.set_ylabel("mean absolute error")


def _by_distance(axes: Axes, results: Results, letter: str, title: str) -> None:
    """A line for each head of the first result; pairs with the virtual node at the left."""
    figures.title(axes, title)
    axes.set_xlabel("distance in bonds; -2: virtual node")
    axes.set_ylabel(letter)
    tables = np.array(results[0]["more"][f"{letter}_by_distance"])
    last = min(FURTHEST, tables.shape[1] - RESERVED - 1)
    for head, row in enumerate(tables):
        shown = row[RESERVED : RESERVED + last + 1]
        colour = figures.colour(head)
        axes.plot(range(last + 1), shown, color=colour, lw=1, marker=".", ms=3)
        axes.plot([-2], row[:1], color=colour, marker="o", ms=4, ls="")
    axes.axhline(1.0 if letter == "C" else 0.0, color="0.3", ls=":", lw=1)
    figures.whole_numbers(axes.xaxis, most=9)
