"""A deep model of attention and feed-forward layers, with everything random."""

from collections.abc import Callable
from typing import Literal

import torch
from tests.layers.plain import randomise
from torch import Tensor, nn

from everyformer.layers import Encoding, Gain, Graph, RelativeAttention

WIDTH, HEADS = 8, 2


class Encoder(nn.Module):
    """Attention, then two linear maps with ReLU, each with its residual and norm."""

    def __init__(
        self,
        encoding: Callable[[], Encoding | str | None],
        *,
        depth: int = 3,
        gain: Gain | None = None,
        causal: bool = False,
        norm: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList(
            RelativeAttention(
                WIDTH, HEADS, encoding=encoding(), gain=gain, causal=causal, max_len=16
            )
            for _ in range(depth)
        )
        self.feed_forward = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))
            for _ in range(depth)
        )
        self.norms = nn.ModuleList(
            nn.LayerNorm(WIDTH) if norm else nn.Identity() for _ in range(2 * depth)
        )
        self.double()
        randomise(self, seed)
        with torch.no_grad():  # else the norms make everything small
            for norm_layer in self.modules():
                if isinstance(norm_layer, nn.LayerNorm):
                    norm_layer.weight.add_(1.0)

    def use(self, implementation: Literal["auto", "reference"]) -> None:
        for layer in self.attention:
            assert isinstance(layer, RelativeAttention)
            layer.implementation = implementation

    def forward(self, x: Tensor, graph: Graph | None = None) -> Tensor:
        for level, (attention, feed_forward) in enumerate(
            zip(self.attention, self.feed_forward, strict=True)
        ):
            x = self.norms[2 * level](x + attention(x, graph=graph))
            x = self.norms[2 * level + 1](x + feed_forward(x))
        return x


def spread(x: Tensor) -> float:
    """Largest difference between rows of one sample."""
    return float((x.amax(-2) - x.amin(-2)).abs().max().detach())


def constant_rows(n: int = 7, seed: int = 3) -> Tensor:
    """Two samples; in each, all tokens equal."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 1, WIDTH, generator=generator, dtype=torch.float64)
    return x.expand(2, n, WIDTH)
