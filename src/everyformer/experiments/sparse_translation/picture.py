"""Loss against updates, and nats and BLEU against the density of the pattern."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from everyformer import figures
from everyformer.experiments.curves import Results, by_step, draw_band, having
from everyformer.experiments.experiment import entry_of


@figures.styled
def picture(results: Results, path: Path) -> None:
    """Validation nats while training; what every arm reaches, by the pairs it has."""
    own = [r for r in results if not r["labels"]["density"].endswith("-rate")]
    arms = list(dict.fromkeys(r["labels"]["arm"] for r in own))
    figure = Figure(figsize=(13, 4.2))
    left, middle, right = figure.subplots(1, 3)
    _curves(left, own, arms)
    done = [r for r in own if r["complete"]]
    _by_density(middle, done, arms, "test.nats.mean_sampled", "nats per token, test")
    _by_density(right, done, arms, "translated.test.bleu", "BLEU, greedy, test")
    if middle.lines:
        figures.legend_beside(right if right.lines else middle)
    figures.write(figure, path)


def _curves(axes: Axes, results: Results, arms: Sequence[str]) -> None:
    """Nats on validation pairs; the band holds all seeds."""
    for place, arm in enumerate(arms):
        if evaluated := by_step(having(results, arm=arm), "nats"):
            draw_band(axes, evaluated, figures.curve(place, len(arms), marked=False))
    figures.title(axes, "validation, nats per token")
    axes.set_xlabel("updates")
    figures.whole_numbers(axes.xaxis, most=6)


def _by_density(
    axes: Axes, results: Results, arms: Sequence[str], metric: str, title: str
) -> None:
    """A point for every run; dense is a dashed line."""
    for place, arm in enumerate(arms):
        points = [
            (r["more"]["density_of_texts"], float(value))
            for r in having(results, arm=arm)
            if (value := entry_of(r["more"], metric)) is not None
        ]
        if not points:
            continue
        look = figures.curve(place, len(arms))
        if arm == "dense":
            mean = statistics.fmean(value for _, value in points)
            axes.axhline(mean, color=look["color"], ls="--", label="dense, 100 %")
            continue
        look["linestyle"] = ""
        axes.plot(*zip(*points, strict=True), label=arm, **look)
    figures.title(axes, title)
    axes.set_xlabel("connections, % of the pairs of the texts")
