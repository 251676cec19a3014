"""All benchmarks, by name."""

from everyformer.bench import (
    attention,
    bert,
    building,
    certificates,
    compiling,
    constructions,
    execution,
    graphs,
    hostile,
    mixer_costs,
    mixers,
    models,
    pairwise,
    peers,
    rates,
    scaling,
    sparse,
    tightness,
    training,
    work,
    xl,
)

THEMES = {
    "building": building,
    "execution": execution,
    "certificates": certificates,
    "constructions": constructions,
    "rates": rates,
    "attention": attention,
    "pairwise": pairwise,
    "training": training,
    "bert": bert,
    "xl": xl,
    "graphs": graphs,
    "sparse": sparse,
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

RESUMABLE = {"compile": compiling.run, "compile-scaling": scaling.run}
"""Benchmarks that keep each row as soon as it is known."""

CHOOSING = {"models": models.run}
"""Benchmarks that take `--only` and `--minutes`."""

PICTURES = {
    "constructions": constructions.picture,
    "rates": rates.picture,
    "execution": execution.picture,
    "attention": attention.picture,
    "training": training.picture,
    "sparse": sparse.picture,
    "mixers": mixers.picture,
    "mixer-costs": mixer_costs.picture,
}
