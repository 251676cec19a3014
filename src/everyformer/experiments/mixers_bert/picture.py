"""Figure 1 redrawn, and what leads to it: curves of pre-training."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from everyformer.experiments.mixers_bert.cells import PLATEAU

Results = Sequence[Mapping[str, Any]]
PANELS = (
    ("mlm", "nats", "pre-training, nats (lower is better)"),
    ("mnli", "accuracy", "MNLI, accuracy"),
    ("squad", "f1", "SQuAD, F1"),
)
"""Task, metric and title of Figure 1's panels."""


def picture(results: Results, path: Path) -> None:
    """The curves of all arms, then a number against the layers that are replaced."""
    figure = Figure(figsize=(13, 3.6), layout="constrained")
    panels = figure.subplots(1, 1 + len(PANELS), width_ratios=[1.5, 1, 1, 1])
    _curves(panels[0], [r for r in results if r["labels"]["task"] == "mlm"])
    for axes, (task, metric, title) in zip(panels[1:], PANELS, strict=True):
        own = [r for r in results if r["labels"]["task"] == task and r["complete"]]
        _replaced(axes, own, metric, title)
    figure.savefig(path, dpi=120)


def _curves(axes: Axes, results: Results) -> None:
    """Nats on validation text against updates; the band holds all seeds."""
    for place, arm in enumerate(dict.fromkeys(r["labels"]["arm"] for r in results)):
        by_step: dict[int, list[float]] = {}
        for result in results:
            if result["labels"]["arm"] == arm:
                for line in result["more"]["curve"]:
                    if "nats" in line:
                        by_step.setdefault(line["step"], []).append(line["nats"])
        if not by_step:
            continue
        steps = sorted(by_step)
        colour = f"C{place}"
        means = [statistics.fmean(by_step[step]) for step in steps]
        axes.plot(steps, means, label=arm, color=colour, lw=1.2)
        low, high = ([f(by_step[step]) for step in steps] for f in (min, max))
        axes.fill_between(steps, low, high, color=colour, alpha=0.25, lw=0)
    axes.axhline(PLATEAU, color="grey", ls=":", lw=0.8)
    axes.set_title("pre-training: masked words", fontsize=9)
    axes.set_xlabel("updates")
    axes.set_ylabel(f"nats; dotted: {PLATEAU}, the plateau")
    if axes.lines[1:]:
        axes.legend(fontsize=7)


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
        means = [statistics.fmean(at[j]) for j in depths]
        axes.plot(depths, means, marker="o", ms=4, label="light, then attention")
        low, high = ([f(at[j]) for j in depths] for f in (min, max))
        axes.fill_between(depths, low, high, color="C0", alpha=0.25, lw=0)
        axes.set_xticks(depths)
    for place, (arm, values) in enumerate(others.items()):
        mean = statistics.fmean(values)
        axes.axhline(mean, ls="--", lw=0.9, color=f"C{place + 1}", label=arm)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("layers replaced by light convolution")
    if depths or others:
        axes.legend(fontsize=7)
