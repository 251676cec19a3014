"""A language model of bytes for long contexts: dense or sparse attention, all else equal.

Pre-norm blocks of attention and a feed-forward network with GELU, rotary positions (Su et
al. 2021), no biases, no dropout, the head tied to the embedding. States between blocks have
a dtype of their own: what is not attention is mostly reading and writing them. The dense
arm calls `scaled_dot_product_attention` with `is_causal`, the sparse ones
`sparse_attention` over the causal part of a pattern.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.nn import functional

from everyformer.ops.sparse_attention.operator import attend
from everyformer.ops.sparse_attention.plans import plan_of
from everyformer.patterns import Part, Pattern, recipe

BASE = 500_000.0
"""Of the rotary frequencies: at 65,536 tokens the slowest one has not turned round."""


@dataclass(frozen=True)
class Arm:
    """How a network attends.

    Attributes:
        name: Of the arm.
        about: For tables.
        pattern: Name of the recipe; "" for dense attention.
        parameters: Of the recipe, by name.
    """

    name: str
    about: str
    pattern: str = ""
    parameters: tuple[tuple[str, int], ...] = ()

    def causal(self, n: int) -> Pattern | None:
        """The pattern for n tokens; None for dense attention."""
        if not self.pattern:
            return None
        return recipe(self.pattern, causal=True, **dict(self.parameters))(n)

    def part(self, n: int, layer: int) -> Part | None:
        """The part of a layer: the parts of a pattern take turns."""
        pattern = self.causal(n)
        return None if pattern is None else pattern.part_of(layer)


@dataclass(frozen=True)
class Sizes:
    """Of the model; the feed-forward network is four times as wide as a token.

    Attributes:
        dim: Of a token.
        layers: Number of blocks.
        head: Coordinates of a head.
        vocabulary: Number of tokens.
    """

    dim: int = 512
    layers: int = 8
    head: int = 64
    vocabulary: int = 256


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, sizes: Sizes, part: Part | None) -> None:
        """Over a part, or dense."""
        super().__init__()
        self.part = part  # a plan lives as long as its part
        self.handle = None if part is None else plan_of(part).handle
        self.head = sizes.head
        self.inside = nn.Linear(sizes.dim, 3 * sizes.dim, bias=False)
        self.outside = nn.Linear(sizes.dim, sizes.dim, bias=False)

    def forward(self, x: Tensor, turns: Float[Tensor, "2 n half"]) -> Tensor:
        """From (b, n, d) to (b, n, d)."""
        q, k, v = (
            y.unflatten(-1, (-1, self.head)).transpose(1, 2)
            for y in self.inside(x).chunk(3, -1)
        )
        q, k = turned(q, turns), turned(k, turns)
        if self.handle is None:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = attend(q, k, v, self.handle)
        return self.outside(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, sizes: Sizes, part: Part | None) -> None:
        """Over a part, or dense."""
        super().__init__()
        self.attention = Attention(sizes, part)
        self.first, self.second = nn.LayerNorm(sizes.dim), nn.LayerNorm(sizes.dim)
        self.up = nn.Linear(sizes.dim, 4 * sizes.dim, bias=False)
        self.down = nn.Linear(4 * sizes.dim, sizes.dim, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """From (b, n, d) to (b, n, d)."""
        x = x + self.attention(self.first(x), turns)
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Head(nn.Module):
    """The mean loss of the next byte, in nats, by the transposed embedding."""

    def __init__(self, sizes: Sizes) -> None:
        """Of a vocabulary."""
        super().__init__()
        self.norm = nn.LayerNorm(sizes.dim)

    def forward(self, x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        """Of states (b, n, d) and the labels (b, n) of their next bytes."""
        logits = functional.linear(self.norm(x), weight).flatten(0, 1)
        return functional.cross_entropy(logits.float(), labels.flatten())


class LongModel(nn.Module):
    """Predicts the next byte; the output is the mean loss in nats per byte."""

    turns: Tensor

    def __init__(
        self, sizes: Sizes, arm: Arm, n: int, states: torch.dtype = torch.float32
    ) -> None:
        """For sequences of n bytes; states between blocks are kept in a dtype."""
        super().__init__()
        self.states = states
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.dim)
        self.blocks = nn.ModuleList(
            [Block(sizes, arm.part(n, layer)) for layer in range(sizes.layers)]
        )
        self.head = Head(sizes)
        self.register_buffer("turns", rotations(n, sizes.head), persistent=False)
        self.depth = sizes.layers
        self.restart(0)

    def restart(self, seed: int) -> None:
        """Weights of normal numbers, 0.02 wide; what adds to the stream, less by depth."""
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if p.dim() == 1:
                    p.fill_(
                        1.0 if name.endswith(("first.weight", "second.weight")) else 0.0
                    )
                    if name == "head.norm.weight":
                        p.fill_(1.0)
                    continue
                writes = name.endswith(("outside.weight", "down.weight"))
                width = 0.02 / (2 * self.depth) ** 0.5 if writes else 0.02
                p.copy_(width * torch.randn(p.shape, generator=random))

    def compile_parts(self) -> None:
        """Blocks and head by `torch.compile`; blocks share their code."""
        for block in self.blocks:
            block.compile(dynamic=False, fullgraph=True)
        self.head.compile(dynamic=False, fullgraph=True)

    def forward(self, tokens: Integer[Tensor, "b n_plus_1"]) -> Tensor:
        """The mean loss of bytes 2, .., n + 1 of each row."""
        tokens = tokens.long()
        x = self.embedding(tokens[:, :-1]).to(self.states)
        for block in self.blocks:
            x = block(x, self.turns)
        return self.head(x, self.embedding.weight, tokens[:, 1:])


def rotations(n: int, head: int) -> Float[Tensor, "2 n half"]:
    """Cosines and sines of the angles of n places."""
    half = head // 2
    frequencies = BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(n, dtype=torch.float64)[:, None] * frequencies
    return torch.stack([angles.cos(), angles.sin()]).float()


def turned(x: Tensor, turns: Float[Tensor, "2 n half"]) -> Tensor:
    """Every pair (x_i, x_{i + d/2}) turned by the angle of its place."""
    cos, sin = turns[0], turns[1]
    one, two = x.chunk(2, -1)
    found = torch.cat([one * cos - two * sin, one * sin + two * cos], -1)
    return found.to(x.dtype)


def parameter_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Matrices with weight decay; vectors and the embedding without."""
    matrices = [p for n, p in model.named_parameters() if p.dim() > 1 and "embed" not in n]
    known = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in known]
    return [
        {"params": matrices, "weight_decay": decay},
        {"params": others, "weight_decay": 0.0},
    ]
