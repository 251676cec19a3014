"""What each arm can do at longer and longer sequences."""

import statistics
from pathlib import Path

from matplotlib.figure import Figure

from everyformer import figures
from everyformer.experiments.curves import Results, having
from everyformer.experiments.urpe_lengths.models import ARMS

SHOWN = {"copy": "accuracy", "text": "nats"}


@figures.styled
def picture(results: Results, path: Path) -> None:
    """A panel for each task; a line for each arm through its means, a dot for each seed."""
    figure = Figure(figsize=(9, 3.4))
    for (task, metric), axes in zip(SHOWN.items(), figure.subplots(1, 2), strict=True):
        figures.title(axes, task)
        axes.set_xlabel("tokens of the test")
        axes.set_ylabel(metric if task == "copy" else "nats per byte")
        figures.logarithmic(axes.xaxis, base=2)
        for place, arm in enumerate(ARMS):
            runs = [r["more"]["test"] for r in having(results, task=task, method=arm)]
            if not runs:
                continue
            names = [name for name in runs[0] if name.startswith(f"{metric}@")]
            lengths = [int(name.rpartition("@")[2]) for name in names]
            values = [[run[name]["mean_sampled"] for name in names] for run in runs]
            means = [statistics.fmean(found) for found in zip(*values, strict=True)]
            look = figures.curve(place, len(ARMS), marked=False)
            look["linestyle"] = "--" if arm.startswith("urpe") else "-"
            axes.plot(lengths, means, label=arm, **look)
            for run in values:
                axes.plot(lengths, run, ".", ms=4, color=look["color"], zorder=3)
            figures.tick_each(axes.xaxis, lengths)
        axes.plot([], [], "k.", ms=4, label="one seed")
        axes.set_ylim(bottom=0)
    figures.one_legend(figure)
    figures.write(figure, path)
