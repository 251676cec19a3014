"""Accuracy against updates, a panel for each task and |V|."""

from pathlib import Path

from matplotlib.figure import Figure

from everyformer import figures
from everyformer.experiments.curves import Results, having
from everyformer.experiments.urpe_synthetic.cells import ENCODINGS


@figures.styled
def picture(results: Results, path: Path) -> None:
    """Validation accuracy of every run, with a marker at its end; dots at chance."""
    tasks = list(dict.fromkeys(r["labels"]["task"] for r in results)) or ["pi"]
    sizes = sorted({r["labels"]["tokens"] for r in results}) or [10]
    methods = [name for name in ENCODINGS if having(results, method=name)]
    figure = Figure(figsize=(1.8 + 3.2 * len(sizes), 2.8 * len(tasks)))
    panels = figure.subplots(len(tasks), len(sizes), squeeze=False, sharey=True)
    for task, row in zip(tasks, panels, strict=True):
        for size, axes in zip(sizes, row, strict=True):
            figures.title(axes, f"{task.upper()}, |V| = {size:,}")
            axes.set_ylim(-0.02, 1.04)
            axes.set_xlabel("updates")
            figures.whole_numbers(axes.xaxis, most=5)
            for result in having(results, task=task, tokens=size):
                method = result["labels"]["method"]
                points = [x for x in result["more"]["curve"] if "accuracy" in x]
                place = methods.index(method)
                axes.plot(
                    [x["step"] for x in points],
                    [x["accuracy"] for x in points],
                    **figures.curve(place, len(methods)),
                    markevery=[-1] if points else None,
                    label=method,
                )
                chance = result["more"]["chance"]
                axes.axhline(chance, color="0.3", ls=":", lw=1, zorder=4)
    panels[-1][-1].plot([], [], color="0.3", ls=":", lw=1, label="chance")
    for row in panels:
        row[0].set_ylabel("accuracy")
    figures.one_legend(figure)
    figures.write(figure, path)
