"""The table of classes in docs/hugging_face.md, from the models under test.

`python -m tests.hugging_face_page` measures each class and writes the table: the largest
deviations in float32 from transformers, with nothing padded and with padding on the left.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from tests.layers.hugging_face.models import CASES, paddings, real, results

import everyformer
from everyformer.layers.hugging_face.classes import CLASSES

PAGE = Path(__file__).parents[1] / "docs" / "hugging_face.md"
BEGIN = "<!-- made by `python -m tests.hugging_face_page` -->"
END = "<!-- end -->"
HEAD = (
    "| model | attention classes | bias | compared with the heads of | logits | gradients "
    "| text, 64 tokens |"
)


def rows(measure: bool) -> Iterator[tuple[str, str]]:
    """Name and row of each model; without the deviations if they are not measured."""
    library = import_module("transformers")
    for name, case in CASES.items():
        model = real(name, library) if measure else None
        found = ("", "") if model is None else deviations(model)
        yield name, row(name, case, library, found)


def row(name: str, case: Any, library: Any, found: tuple[str, str]) -> str:
    """One line of the table."""
    kind = case.make(library, 4, 16)
    classes = dict.fromkeys(type(m).__name__ for m in kind.modules() if known(m))
    bias = next(CLASSES[place(m)].bias for m in kind.modules() if known(m))
    ways = "greedy, sampled, beams; cache on, off" + (", static" if case.static else "")
    cells = [
        type(kind).__name__, ", ".join(classes), bias,
        f"{case.like}: {case.heads} x {case.size}", *found,
        ways if case.generates else "makes none",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def place(module: Any) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("transformers.models.")


def known(module: Any) -> bool:
    return place(module) in CLASSES


def deviations(model: Any) -> tuple[str, str]:
    """Of logits, by the largest; of all gradients together, in the norm."""
    logits = gradients = 0.0
    for padded in ("nothing", "left"):
        seen = paddings()[padded]
        theirs = results(model, seen)
        everyformer.speed_up(model)
        ours = results(model, seen)
        everyformer.restore(model)
        gap = (ours[0] - theirs[0]).abs().max() / theirs[0].abs().max()
        logits = max(logits, float(gap))
        x, y = (torch.cat([g.flatten() for g in f[1].values()]) for f in (ours, theirs))
        gradients = max(gradients, float((x - y).norm() / y.norm()))
    return f"{logits:.0e}", f"{gradients:.0e}"


def table(measure: bool = True) -> str:
    """The whole table."""
    lines = [HEAD, "|" + "---|" * (HEAD.count("|") - 1)]
    return "\n".join([*lines, *(line for _, line in rows(measure))])


def names_in_page() -> list[str]:
    """The models in the page, as written."""
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    return [line.split("|")[1].strip() for line in text.strip().splitlines()[2:]]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}")
