"""All benchmarks, by name."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from everyformer.bench import (
    attention,
    bert,
    building,
    causal,
    certificates,
    constructions,
    execution,
    graphs,
    hostile,
    long_context,
    mixer_costs,
    mixers,
    models,
    pairwise,
    rates,
    residual,
    sparse,
    tightness,
    training,
    work,
    xl,
)
from everyformer.bench.methods.compile import compiling, peers, scaling

THEMES: dict[str, ModuleType] = {
    "building": building,
    "execution": execution,
    "certificates": certificates,
    "constructions": constructions,
    "rates": rates,
    "residual": residual,
    "attention": attention,
    "pairwise": pairwise,
    "training": training,
    "bert": bert,
    "xl": xl,
    "graphs": graphs,
    "sparse": sparse,
    "causal": causal,
    "long-context": long_context,
    "mixers": mixers,
    "mixer-costs": mixer_costs,
    "hostile": hostile,
    "work": work,
    "tightness": tightness,
    "compile": compiling,
    "compile-scaling": scaling,
    "peers": peers,
    "models": models,
}

PICTURES: dict[str, Callable[[dict[str, Any], Path], None]] = {
    name: theme.picture for name, theme in THEMES.items() if hasattr(theme, "picture")
}
