"""The overview of the slides, three rows of Yes and No, with the evidence of each entry."""

import statistics
from collections.abc import Sequence

from everyformer.checks.report import check
from everyformer.experiments.curves import Results, having
from everyformer.experiments.experiment import markdown
from everyformer.experiments.urpe_images.moving import moved_change, renumbered_change
from everyformer.experiments.urpe_lengths.models import RELATIVE, UNIVERSAL
from everyformer.layers.by_name import attention_by_name

COLUMNS = {"APE": ("ape",), "RPE": RELATIVE, "URPE": UNIVERSAL}
KEPT = 0.9
"""The share of its accuracy of copying that an arm keeps if it generalises."""

LOST = 0.1
"""Nats a byte that longer sequences may cost an arm that generalises."""

SAID = {
    "Generalize to longer sequence": ("No", "Yes", "Yes"),
    "Easily extend to image/graph data": ("No", "Yes", "Yes"),
    "Universal approximation": ("Yes", "No", "Yes"),
}
"""Luo et al. 2022, slides, "Overview"."""

SIZE = 4
"""Tokens and width of the layers that are checked: one counterexample is enough."""


def overview(results: Results, size: str) -> str:
    """The table of the slides; smoke runs have none, they show nothing."""
    if size == "smoke":
        return ""
    evidence = [
        [kept_lengths(results, arms) for arms in COLUMNS.values()],
        [
            _other_data(name, graph)
            for name, graph in (
                ("ape", "ape"), ("swin", "graphormer"), ("swin+urpe", "graphormer+urpe"),
            )
        ],
        [_universal(name) for name in ("ape", "t5", "t5+urpe")],
    ]  # fmt: skip
    rows = [
        [row, *(f"{word}: {told}" for word, told in zip(words, found, strict=True))]
        for (row, words), found in zip(SAID.items(), evidence, strict=True)
    ]
    return (
        "The overview of the slides (Luo et al. 2022): Yes and No are their words, the "
        "rest is seen here. "
        "Row 1: means over seeds at the length of training and at eight times that; an arm "
        f"keeps copying if it has {KEPT:g} of its accuracy there, and the text if it loses "
        f"at most {LOST:g} nats. Row 2: the largest change of a state of an image encoder "
        "when the image moves by one window, and of an output of a layer when the nodes of "
        f"a graph are renumbered. Row 3: `check` at n = d = {SIZE}.\n\n"
        + markdown(["", *COLUMNS], rows)
    )


def kept_lengths(results: Results, arms: Sequence[str]) -> str:
    """What each arm can do at the length of training and at the longest."""
    told: list[str] = []
    for arm in arms:
        parts: list[str] = []
        for task, metric in (("copy", "accuracy"), ("text", "nats")):
            found = having(results, task=task, method=arm)
            runs = [r["more"]["test"] for r in found if r["complete"]]
            if not runs:
                continue
            lengths = (name.partition(f"{metric}@")[2] for name in runs[0])
            far = f"{metric}@{max(int(length) for length in lengths if length)}"
            near, end = (
                statistics.fmean(run[name]["mean_sampled"] for run in runs)
                for name in (metric, far)
            )
            kept = end >= KEPT * near if task == "copy" else end <= near + LOST
            word = "kept" if kept else "lost"
            parts.append(f"{task} {near:.2f} to {end:.2f} ({word})")
        if parts:
            told.append(f"{arm} {', '.join(parts)}")
    return "; ".join(told) or "not run"


def _other_data(image: str, graph: str) -> str:
    return (
        f"{image} {moved_change(image):.1e} when moved, {graph} "
        f"{renumbered_change(graph):.1e} when renumbered"
    )


def _universal(name: str) -> str:
    layer = attention_by_name(name, seq_len=SIZE, embed_dim=SIZE, num_heads=2)
    return f"{name} {check(layer, SIZE, SIZE).verdict}"
