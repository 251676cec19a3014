"""What each arm can do at longer and longer sequences."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from everyformer.experiments.urpe_lengths.models import ARMS

SHOWN = {"copy": "accuracy", "text": "nats"}


def picture(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A panel for each task; a line for each arm, thin dots for its seeds."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    drawn: dict[str, Any] = {}
    for (task, metric), axes in zip(SHOWN.items(), figure.subplots(1, 2), strict=True):
        axes.set_title(task, fontsize=9)
        axes.set_xlabel("tokens of the test")
        axes.set_ylabel(metric if task == "copy" else "nats of a byte")
        axes.set_xscale("log", base=2)
        for place, arm in enumerate(ARMS):
            wanted = (task, arm)
            runs = [
                r["more"]["test"]
                for r in results
                if (r["labels"]["task"], r["labels"]["method"]) == wanted
            ]
            if not runs:
                continue
            names = [name for name in runs[0] if name.startswith(f"{metric}@")]
            lengths = [int(name.rpartition("@")[2]) for name in names]
            values = [[run[name]["mean_sampled"] for name in names] for run in runs]
            means = [statistics.fmean(found) for found in zip(*values, strict=True)]
            style = "--" if arm.startswith("urpe") else "-"
            (drawn[arm],) = axes.plot(lengths, means, style, color=f"C{place}")
            for run in values:
                axes.plot(lengths, run, ".", ms=3, color=f"C{place}")
            axes.set_xticks(lengths, [str(n) for n in lengths])
    figure.legend(drawn.values(), drawn.keys(), loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=120)
