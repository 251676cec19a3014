"""All benchmarks, by name."""

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

THEMES = {
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

RESUMABLE = {
    "compile": compiling.run,
    "compile-scaling": scaling.run,
    "long-context": long_context.run,
}
"""Benchmarks that keep each row as soon as it is known."""

CHOOSING = {"models": ("only", "minutes"), "long-context": ("only", "minutes", "data")}
"""Options of single benchmarks."""

PICTURES = {
    "constructions": constructions.picture,
    "rates": rates.picture,
    "residual": residual.picture,
    "execution": execution.picture,
    "attention": attention.picture,
    "training": training.picture,
    "sparse": sparse.picture,
    "long-context": long_context.picture,
    "mixers": mixers.picture,
    "mixer-costs": mixer_costs.picture,
}
