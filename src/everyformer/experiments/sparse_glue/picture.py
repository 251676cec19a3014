"""Pre-training, and what every arm reaches on each task."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from everyformer import figures
from everyformer.data.glue_metrics import METRICS
from everyformer.experiments.curves import Results, by_step, having


@figures.styled
def picture(results: Results, path: Path) -> None:
    """On the left nats of masked words, on the right the metric of each task."""
    arms = list(dict.fromkeys(r["labels"]["arm"] for r in results))
    figure = Figure(figsize=(11, 4.2))
    left, right = figure.subplots(1, 2)
    _curves(left, having(results, task="mlm"), arms)
    done = [r for r in results if r["labels"]["task"] != "mlm" and r["complete"]]
    _tasks(right, done, arms)
    figures.write(figure, path)


def _curves(axes: Axes, results: Results, arms: Sequence[str]) -> None:
    for place, arm in enumerate(arms):
        if evaluated := by_step(having(results, arm=arm), "nats"):
            steps = sorted(evaluated)
            means = [statistics.fmean(evaluated[step]) for step in steps]
            axes.plot(steps, means, **figures.curve(place, len(arms), marked=False))
    figures.title(axes, "pre-training: nats of masked words")
    axes.set_xlabel("updates")
    axes.set_xlim(left=0)


def _tasks(axes: Axes, results: Results, arms: Sequence[str]) -> None:
    """A mark for the mean of each arm, the runs as dots beside the others' ones."""
    tasks = list(dict.fromkeys(r["labels"]["task"] for r in results))
    for place, arm in enumerate(arms):
        look = figures.curve(place, len(arms))
        look["linestyle"] = ""
        shown: list[tuple[float, float]] = []
        for column, task in enumerate(tasks):
            own = [r["value_sampled"] for r in having(results, task=task, arm=arm)]
            if not own:
                continue
            x = column + 0.11 * (place - (len(arms) - 1) / 2)
            shown.append((x, statistics.fmean(own)))
            axes.plot([x] * len(own), own, ".", ms=3, color=look["color"])
        if shown:
            axes.plot(*zip(*shown, strict=True), label=arm, **look)
    names = [f"{task}\n{METRICS[task][0] if task in METRICS else 'accuracy'}" for task in
             tasks]  # fmt: skip
    axes.set_xticks(range(len(tasks)), names)
    figures.title(axes, "fine-tuned: a dot a run, a mark the mean")
    if axes.lines:
        figures.legend_beside(axes)
