"""Curves of training: the mean of the seeds of an arm, in a band that holds all."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

Results = Sequence[Mapping[str, Any]]


def by_step(results: Results, metric: str) -> dict[int, list[float]]:
    """What evaluations of these results gave, by update.

    Example:
        >>> one = {"more": {"curve": [{"step": 5, "loss": 1.0}, {"step": 5, "nats": 2.0}]}}
        >>> by_step([one, one], "nats")
        {5: [2.0, 2.0]}
    """
    found: dict[int, list[float]] = {}
    for result in results:
        for line in result["more"]["curve"]:
            if metric in line:
                found.setdefault(line["step"], []).append(line[metric])
    return found


def having(results: Results, **labels: str | int) -> list[Mapping[str, Any]]:
    """The results with these labels."""
    return [one for one in results if labels.items() <= one["labels"].items()]


def draw_band(
    axes: Axes,
    values: Mapping[int, Sequence[float]],
    look: Mapping[str, Any],
    label: str | None = None,
) -> list[float]:
    """A line through the means and a band from the least to the largest value.

    Args:
        axes: Where.
        values: All values at each place of the abscissa.
        look: Of the line; the band has its colour.
        label: Of the line.

    Returns:
        The means.
    """
    places = sorted(values)
    means = [statistics.fmean(values[place]) for place in places]
    axes.plot(places, means, label=label, **look)
    low, high = ([f(values[place]) for place in places] for f in (min, max))
    axes.fill_between(places, low, high, color=look["color"], alpha=0.25, lw=0)
    return means
