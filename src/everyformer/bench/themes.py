"""All benchmarks, by name."""

from everyformer.bench import (
    attention,
    bert,
    building,
    certificates,
    compiling,
    constructions,
    execution,
    hostile,
    mixers,
    peers,
    sparse,
    tightness,
    training,
    work,
)

THEMES = {
    "building": building,
    "execution": execution,
    "certificates": certificates,
    "constructions": constructions,
    "attention": attention,
    "training": training,
    "bert": bert,
    "sparse": sparse,
    "mixers": mixers,
    "hostile": hostile,
    "work": work,
    "tightness": tightness,
    "compile": compiling,
    "peers": peers,
}

PICTURES = {
    "constructions": constructions.picture,
    "execution": execution.picture,
    "attention": attention.picture,
    "training": training.picture,
    "sparse": sparse.picture,
    "mixers": mixers.picture,
}
