"""`contextual-gap`: how far apart random mixers keep the tokens of a finite set.

Section 6 of Yun et al. 2020, made quantitative. Tokens are t u, t = 1 .. K, with one
random direction u; the set holds every multiset of n of them once. Attention and averaging
are equivariant and must tell multisets apart; bi-linear projection is compared on pairs
that differ in one token (Section 6.1); the others on all pairs. Mixers have random weights
and skip connections; they run alone, or with random feed-forward layers between them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from everyformer.checks.contextual_gap import contextual_gap, with_skips
from everyformer.experiments.cell import Cell, Result, Size, measuring_cell
from everyformer.layers.models.encoder_block import EncoderBlock, mixer_by_name
from everyformer.layers.models.encoder_config import EncoderConfig

MIXERS = {
    "attention": "attention",
    "bi-linear": "bilinear",
    "separable": "separable",
    "average": "average",
}
EQUIVARIANT = ("attention", "average")
STACKS = ("alone", "with feed-forward")
WEIGHT_STD = 0.5


@dataclass(frozen=True)
class Scale:
    """n tokens of K kinds in d dimensions, and the depths."""

    n: int
    kinds: int
    dim: int
    depths: tuple[int, ...]


SCALES: dict[Size, Scale] = {
    "smoke": Scale(3, 3, 4, (1, 2)),
    "small": Scale(4, 4, 8, (1, 2, 3, 4, 6, 8)),
    "paper": Scale(5, 4, 8, (1, 2, 3, 4, 6, 8, 12)),
}


def cells(size: Size, seeds: Sequence[int], changes: Mapping[str, Any]) -> list[Cell]:
    """Every mixer, alone and with feed-forward layers, at every depth."""
    return [
        _cell(SCALES[size], mixer, stack, depth, seed)
        for seed in seeds
        for mixer in MIXERS
        for stack in STACKS
        for depth in SCALES[size].depths
    ]


def _cell(scale: Scale, mixer: str, stack: str, depth: int, seed: int) -> Cell:
    labels: dict[str, str | int] = {
        "mixer": mixer, "stack": stack, "depth": depth, "seed": seed,
    }  # fmt: skip
    settings = {"n": scale.n, "kinds": scale.kinds, "dim": scale.dim, **labels}
    return measuring_cell(
        labels, settings, lambda: measured(scale, mixer, stack, depth, seed)
    )


def measured(scale: Scale, mixer: str, stack: str, depth: int, seed: int) -> Result:
    """The least gap, as a share of the largest output; 0 for a collision."""
    generator = torch.Generator().manual_seed(seed)
    config = EncoderConfig(
        2, scale.n, dim=scale.dim, layers=depth, heads=2, ffn=4 * scale.dim, norm="none",
        mixers=MIXERS[mixer], encoding="none", activation="relu", filter_length=3,
    )  # fmt: skip
    options: Any = {"device": None, "dtype": torch.float64}
    mixers = [
        mixer_by_name(MIXERS[mixer], config, None, False, options) for _ in range(depth)
    ]
    blocks = [EncoderBlock(config, part, options) for part in mixers]
    layers = nn.ModuleList(mixers if stack == "alone" else blocks)
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.normal_(std=WEIGHT_STD, generator=generator)
    run = with_skips(mixers) if stack == "alone" else nn.Sequential(*blocks)
    sequences = multisets(scale, generator, ordered=mixer not in EQUIVARIANT)
    found = contextual_gap(
        run,
        sequences,
        equivariant=mixer in EQUIVARIANT,
        pairs="one token" if mixer == "bi-linear" else "all",
    )
    with torch.no_grad():
        largest = float(run(sequences).abs().max())
    gap = found.gap_sampled / largest if found.separating else 0.0
    more = {"witness": str(found), "sequences": found.sequences}
    return Result(gap, None, True, more)


def multisets(
    scale: Scale, generator: torch.Generator, *, ordered: bool
) -> Float[Tensor, "count n d"]:
    """Every multiset of n of the K tokens t u once; if `ordered`, every sequence."""
    levels = range(1, scale.kinds + 1)
    chosen = (
        product(levels, repeat=scale.n)
        if ordered
        else combinations_with_replacement(levels, scale.n)
    )
    u = torch.randn(scale.dim, generator=generator, dtype=torch.float64)
    return torch.tensor(list(chosen), dtype=torch.float64)[..., None] * (u / u.norm())
