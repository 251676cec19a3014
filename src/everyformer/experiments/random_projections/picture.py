"""The gap against the size of the set: sampled quantiles, and the union bound."""

import statistics
from pathlib import Path

from matplotlib.figure import Figure

from everyformer import figures
from everyformer.experiments.curves import Results, having

LINES = {
    "gap_median_sampled": "median, sampled",
    "gap_quantile_sampled": "5% quantile, sampled",
    "gap_quantile_bound": "5% quantile, proved at least",
}


@figures.styled
def picture(results: Results, path: Path) -> None:
    """The median over seeds, a panel for each length."""
    lengths = sorted({r["labels"]["n"] for r in results}) or [0]
    figure = Figure(figsize=(2.4 + 3.6 * len(lengths), 3.6))
    panels = figure.subplots(1, len(lengths), squeeze=False, sharey=True)[0]
    for n, axes in zip(lengths, panels, strict=True):
        own = having(results, n=n)
        sizes = sorted({r["labels"]["contexts"] for r in own})
        for place, (name, label) in enumerate(LINES.items()):
            values = [
                statistics.median(r["more"][name] for r in having(own, contexts=size))
                for size in sizes
            ]
            axes.plot(sizes, values, label=label, **figures.curve(place, len(LINES)))
        figures.logarithmic(axes.xaxis, base=2)
        figures.tick_each(axes.xaxis, sizes)
        figures.logarithmic(axes.yaxis)
        figures.title(axes, f"n = {n}")
        axes.set_xlabel("contexts in the set")
    panels[0].set_ylabel("gap of a Gaussian $W_P$")
    figures.one_legend(figure)
    figures.write(figure, path)
