"""The table of docs/choosing_patterns.md: theorem and evidence beside each other.

`python -m tests.experiments.choosing_page` writes it anew from the results that are there.
"""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.experiments.sparse_arms import Arm
from everyformer.experiments.sparse_glue.sizes import WIDTHS
from everyformer.experiments.sparse_lm.sizes import SCALES
from everyformer.experiments.sparse_translation.sizes import SCALES as TRANSLATIONS
from everyformer.patterns.assumption_1 import assumption_1

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/choosing_patterns.md"
BEGIN, END = "<!-- generated table -->\n", "<!-- end of the table -->\n"
TRANSLATED = TRANSLATIONS["reduced"].widths
LAYERS = 12
HEADS = (
    "arm, n = 256", "w", "% of pairs, causal", "theorem, two-sided",
    "layers until all is heard, two-sided", "causal", "language model, nats per token",
    "MNLI accuracy", "translation, nats per token",
)  # fmt: skip


def arms() -> dict[str, int]:
    """The arms of the table, and their widths."""
    sets = SCALES["reduced"].sets
    return {**sets["100"], **sets["13"]}


def table() -> str:
    """A line for every arm of `sparse-lm`."""
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    for name, width in arms().items():
        cells = (*theorem(name, width), *evidence(name))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def theorem(name: str, width: int) -> tuple[str, ...]:
    """What is known of an arm without training it."""
    causal, two_sided = (Arm(name, width, 256, causal=one) for one in (True, False))
    pattern = two_sided.pattern(0)
    if two_sided.configuration == "union":
        pattern = pattern.union()
    return (
        f"`{name}`",
        str(width or ""),
        f"{100 * causal.density(LAYERS):.1f}",
        f"Assumption 1 {assumption_1(pattern).verdict}",
        _told(layers_to_hear(two_sided)),
        _told(layers_to_hear(causal)),
    )


def evidence(name: str) -> tuple[str, str, str]:
    """What runs of an arm reached; the star of `sparse-glue` has its relay first."""
    nats = _values("sparse-lm", {"density": ("13", "100")}, "nats").get(name, [])
    in_glue = {"star-first": "star", "star": ""}.get(name, name)
    right = _values("sparse-glue", {"task": ("mnli",)}, "accuracy").get(in_glue, [])
    told = _values("sparse-translation", {"density": ("13", "100")}, "nats")
    return (
        _mean(nats),
        _mean(right) if in_glue in WIDTHS else "",
        _mean(told.get(name, [])) if name in TRANSLATED or name == "dense" else "",
    )


def layers_to_hear(arm: Arm) -> int | None:
    """After how many layers every token has heard all that it may; None after 12."""
    n = arm.seq_len
    wanted = np.tri(n, dtype=bool) if arm.causal else np.ones((n, n), bool)
    reached = np.eye(n, dtype=bool)
    for layer in range(LAYERS):
        mask = np.any([part.mask() for part in arm.parts(layer)], axis=0)
        reached = (mask.astype(np.float32) @ reached.astype(np.float32)) > 0
        if (reached >= wanted).all():
            return layer + 1
    return None


def _told(layers: int | None) -> str:
    return f"more than {LAYERS}" if layers is None else str(layers)


def _values(
    name: str, labels: Mapping[str, tuple[str, ...]], metric: str
) -> dict[str, list[float]]:
    """By arm, what finished runs of the reduced size reached on their test set."""
    found: dict[str, list[float]] = {}
    for path in sorted((ROOT / "experiments/results").glob(f"{name}_reduced_*.json")):
        results: list[dict[str, Any]] = json.loads(path.read_text())["results"]
        for result in results:
            own = result["labels"]
            if result["complete"] and all(own[key] in of for key, of in labels.items()):
                value = result["more"]["test"][metric]["mean_sampled"]
                found.setdefault(own["arm"], []).append(value)
    return found


def _mean(values: list[float]) -> str:
    if not values:
        return "not run"
    seeds = "1 seed" if len(values) == 1 else f"{len(values)} seeds"
    return f"{statistics.fmean(values):.3f} ({seeds})"


def page() -> str:
    """The page with its table as it should be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page())
