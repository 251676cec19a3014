"""Which function of the library builds a stage, and which page describes it."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everyformer.construct.averaging import layers as averaging
from everyformer.construct.compile.lowering import lower as compiling
from everyformer.construct.partition import layers as partition
from everyformer.construct.shifts import contextual, position_layer, quantise, sparse, value
from everyformer.explore.links import Links
from everyformer.model.stacks import Stage

ROOT = Path(__file__).parents[2]

BUILDERS: dict[str, Callable[..., Any]] = {
    "position layer": position_layer.position_layer,
    "read in": quantise.read_in,
    "out of range": quantise.out_of_range,
    "quantise": quantise.quantise,
    "selective shifts": contextual.selective_shifts,
    "global shift": contextual.global_shift,
    "lift": contextual.lift,
    "chain shifts": sparse.chain_shifts,
    "max shifts": sparse.max_shifts,
    "cap ids": value.cap_ids,
    "push down": value.push_down,
    "negative to zero": value.negative_to_zero,
    "ids to codes": value.value_map,
    "value map": value.value_map,
    "clamp": value.clamp,
}
"""The function of each stage that has one of its own."""

FILES: dict[str, Any] = {
    module.__name__.split(".")[2]: module for module in (averaging, partition, compiling)
}
"""The module behind each page of the documentation, for other stages, by its folder."""


def source_of(stage: Stage, links: Links) -> dict[str, str]:
    """Where a stage is built and described: relative paths, and links to them if known."""
    name = stage.kind or stage.name
    docs = stage.source.partition(", ")[2] if "docs/" in stage.source else ""
    page = Path(docs).stem
    if name in BUILDERS:
        file = _place(BUILDERS[name])
    elif page in FILES:
        file = _relative(FILES[page].__file__)
    else:
        file = ""
    if not docs:
        sparse_page = name in ("chain shifts", "max shifts")
        docs = f"docs/constructions/{'sparse' if sparse_page else 'dense'}.md"
    return {
        "file": file,
        "docs": docs,
        "fileLink": links.to_code(file),
        "docsLink": links.to_docs(docs),
    }


def _place(function: Callable[..., Any]) -> str:
    """file.py:line of a function."""
    made = inspect.unwrap(function)
    return f"{_relative(made.__code__.co_filename)}:{made.__code__.co_firstlineno}"


def _relative(file: str) -> str:
    place = Path(file)
    return place.relative_to(ROOT).as_posix() if place.is_relative_to(ROOT) else place.name
