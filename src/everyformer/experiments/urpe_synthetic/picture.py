"""Accuracy against updates, a panel for each task and |V|."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from everyformer.experiments.urpe_synthetic.cells import ENCODINGS


def picture(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Validation accuracy of every run; a dotted line at chance."""
    tasks = list(dict.fromkeys(r["labels"]["task"] for r in results)) or ["pi"]
    sizes = sorted({r["labels"]["tokens"] for r in results}) or [10]
    figure = Figure(figsize=(3.6 * len(sizes), 2.8 * len(tasks)), layout="constrained")
    panels = figure.subplots(len(tasks), len(sizes), squeeze=False)
    colours = {method: f"C{place}" for place, method in enumerate(ENCODINGS)}
    drawn: dict[str, Any] = {}
    for task, row in zip(tasks, panels, strict=True):
        for size, axes in zip(sizes, row, strict=True):
            axes.set_title(f"{task.upper()}, |V| = {size:,}", fontsize=9)
            axes.set_ylim(0, 1.02)
            axes.set_xlabel("updates")
            for result in results:
                labels = result["labels"]
                if (labels["task"], labels["tokens"]) != (task, size):
                    continue
                points = [x for x in result["more"]["curve"] if "accuracy" in x]
                (drawn[labels["method"]],) = axes.plot(
                    [x["step"] for x in points],
                    [x["accuracy"] for x in points],
                    color=colours[labels["method"]],
                )
                axes.axhline(result["more"]["chance"], color="grey", ls=":", lw=0.8)
    panels[0][0].set_ylabel("accuracy")
    figure.legend(drawn.values(), drawn.keys(), loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=120)
