"""Loss against updates, and nats per token against the density of the pattern."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from everyformer import figures
from everyformer.experiments.curves import Results, draw_band, having

SMOOTHED = 5
"""Lines of the log, at most, whose mean is drawn."""


@figures.styled
def picture(results: Results, path: Path) -> None:
    """On the left training, on the right what every arm reaches, by its density."""
    own = [r for r in results if not r["labels"]["density"].endswith("-rate")]
    arms = list(dict.fromkeys(r["labels"]["arm"] for r in own))
    figure = Figure(figsize=(11, 4.2))
    left, right = figure.subplots(1, 2)
    sets = [r["labels"]["density"] for r in own if r["labels"]["arm"] != "dense"]
    first = sets[0] if sets else ""
    main = having(own, density=first)
    _curves(left, [*having(own, arm="dense"), *main], arms)
    figures.title(left, f"training, {first} % of pairs" if sets else "training")
    _by_density(right, [r for r in own if r["complete"]], arms)
    figures.write(figure, path)


def _curves(axes: Axes, results: Results, arms: Sequence[str]) -> None:
    """The loss of updates, the mean of a few lines of the log; the band holds all seeds."""
    lowest: list[float] = []
    for place, arm in enumerate(arms):
        smooth: dict[int, list[float]] = {}
        for result in having(results, arm=arm):
            lines = [line for line in result["more"]["curve"] if "loss" in line]
            width = min(SMOOTHED, 1 + len(lines) // 8)
            for end in range(width, len(lines) + 1):
                some = lines[end - width : end]
                mean = statistics.fmean(line["loss"] for line in some)
                smooth.setdefault(some[-1]["step"], []).append(mean)
        if not smooth:
            continue
        means = draw_band(axes, smooth, _look(arm, place, len(arms), marked=False))
        lowest += [min(means), means[len(means) // 4]]
    if lowest:
        margin = 0.1 * (max(lowest) - min(lowest)) + 0.01
        axes.set_ylim(min(lowest) - margin, max(lowest) + 3 * margin)
    axes.set_xlabel("updates")
    axes.set_ylabel("nats per token")
    axes.set_xlim(left=0)
    figures.whole_numbers(axes.xaxis, most=6)


def _look(arm: str, place: int, count: int, *, marked: bool) -> dict[str, Any]:
    """Dense attention, with which all others are compared, is grey in both panels."""
    look = figures.curve(place, count, marked=marked)
    return {**look, "color": "0.5", "linestyle": "-"} if arm == "dense" else look


def _by_density(axes: Axes, results: Results, arms: Sequence[str]) -> None:
    """A point for every run, a line through the means; dense is a level line."""
    for place, arm in enumerate(arms):
        points: dict[str, list[tuple[float, float]]] = {}
        for result in having(results, arm=arm):
            more = result["more"]
            point = (more["density"], more["test"]["nats"]["mean_sampled"])
            points.setdefault(result["labels"]["density"], []).append(point)
        if not points:
            continue
        means = sorted(
            (statistics.fmean(d for d, _ in own), statistics.fmean(v for _, v in own))
            for own in points.values()
        )
        look = _look(arm, place, len(arms), marked=arm != "dense")
        if arm == "dense":
            axes.axhline(means[0][1], label="dense, 100 %", **look)
            continue
        axes.plot(*zip(*means, strict=True), label=arm, **look)
        for own in points.values():
            axes.plot(*zip(*own, strict=True), ".", ms=3, color=look["color"])
    figures.title(axes, "test documents, a context of half a window")
    axes.set_xlabel("connections, % of allowed pairs")
    axes.set_ylabel("nats per token")
    if axes.lines:
        low, high = axes.get_xlim()
        axes.set_xlim(math.floor(low), math.ceil(high))
        figures.whole_numbers(axes.xaxis)
        figures.legend_beside(axes)
