"""Figure 1 redrawn, and what leads to it: curves of pre-training."""

import statistics
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from everyformer import figures
from everyformer.experiments.curves import Results, by_step, draw_band, having
from everyformer.experiments.mixers_bert.cells import PLATEAU

PANELS = (
    ("mlm", "nats", "pre-training, nats (lower is better)"),
    ("mnli", "accuracy", "MNLI, accuracy"),
    ("squad", "f1", "SQuAD, F1"),
)
"""Task, metric and title of Figure 1's panels."""


@figures.styled
def picture(results: Results, path: Path) -> None:
    """The curves of all arms, then a number against the layers that are replaced."""
    figure = Figure(figsize=(11, 6.6))
    panels = figure.subplots(2, 2).ravel()
    _curves(panels[0], having(results, task="mlm"))
    for axes, (task, metric, title) in zip(panels[1:], PANELS, strict=True):
        own = [r for r in having(results, task=task) if r["complete"]]
        _replaced(axes, own, metric, title)
    figures.write(figure, path)


def _curves(axes: Axes, results: Results) -> None:
    """Nats on validation text against updates; the band holds all seeds."""
    arms = list(dict.fromkeys(r["labels"]["arm"] for r in results))
    for place, arm in enumerate(arms):
        if evaluated := by_step(having(results, arm=arm), "nats"):
            look = figures.curve(place, len(arms), marked=False)
            draw_band(axes, evaluated, look, arm)
    axes.axhline(PLATEAU, color="0.3", ls=":", lw=1, label=f"{PLATEAU}, the plateau")
    figures.title(axes, "pre-training: masked words")
    figures.whole_numbers(axes.xaxis, most=5)
    axes.set_xlabel("updates")
    axes.set_ylabel("nats")
    figures.legend_beside(axes)


def _replaced(axes: Axes, results: Results, metric: str, title: str) -> None:
    """The mean of the seeds against j, in a band that holds all; other arms are dashed."""
    at: dict[int, list[float]] = {}
    others: dict[str, list[float]] = {}
    for result in results:
        value = result["more"]["test"][metric]["mean_sampled"]
        names = result["settings"]["model"]["mixers"]
        if set(names) <= {"light", "attention"}:
            at.setdefault(names.count("light"), []).append(value)
        else:
            others.setdefault(result["labels"]["arm"], []).append(value)
    depths = sorted(at)
    if depths:
        draw_band(axes, at, figures.curve(0, 1 + len(others)), "light, then attention")
        figures.tick_each(axes.xaxis, depths)
    for place, (arm, values) in enumerate(others.items()):
        mean = statistics.fmean(values)
        axes.axhline(mean, ls="--", color=figures.colour(place + 1), label=arm)
    figures.title(axes, title)
    axes.set_xlabel("layers replaced by light convolution")
    if depths or others:
        figures.legend_beside(axes)
