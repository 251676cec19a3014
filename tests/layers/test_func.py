"""`torch.func` on every layer: against the reference, or autograd where there is none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.layers.plain import randomise, some_padding, tokens
from tests.layers.test_mixers import MAKERS as MIXERS
from tests.ops.operators import gap
from torch import Tensor, nn
from torch.autograd.functional import hessian as plain_hessian
from torch.autograd.functional import jacobian
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

from everyformer import patterns
from everyformer.layers import (
    Encoder,
    EncoderConfig,
    GraphGain,
    Graphormer,
    RelativeAttention,
    SparseAttention,
    Swin,
    add_urpe,
    shortest_paths,
)

EXACT = 1e-10
N, WIDTH = 4, 4
NAMES = [
    "none", "t5", "t5-buckets", "alibi", "rotary", "shaw", "shaw-values", "deberta", "xl",
]  # fmt: skip


class WithGraph(nn.Module):
    """A layer on a path of N nodes."""

    def __init__(self) -> None:
        super().__init__()
        path = torch.diag(torch.ones(N - 1, dtype=torch.bool), 1)
        self.graph = shortest_paths(path | path.T, tokens(N, N, 3), max_steps=2)
        encoding = Graphormer(2, N, edge_dim=3, max_steps=2)
        self.layer = RelativeAttention(WIDTH, 2, encoding=encoding, gain=GraphGain(2, N))

    def forward(self, x: Tensor, **given: Any) -> Any:
        return self.layer(x, graph=self.graph, **given)


class Block(nn.Module):
    """A block of an encoder, on tokens that are vectors already."""

    def __init__(self) -> None:
        super().__init__()
        config = EncoderConfig(
            vocab_size=5, max_len=N, dim=WIDTH, heads=2, layers=1, dropout=0.0,
            encoding="ape+t5+urpe",
        )  # fmt: skip
        self.block = Encoder(config).blocks[0]

    def forward(self, x: Tensor, **given: Any) -> Any:
        return self.block(x, **given)


def relative(name: str) -> Callable[[], nn.Module]:
    return lambda: RelativeAttention(
        WIDTH, 2, encoding=name, gain=True, max_len=N, causal=name in ("t5", "alibi")
    )


class Gained(nn.Module):
    """`nn.MultiheadAttention` with a gain."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = add_urpe(nn.MultiheadAttention(WIDTH, 2, batch_first=True), max_len=N)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        return self.layer(x, x, x, key_padding_mask, need_weights=False)[0]


LAYERS: dict[str, Callable[[], nn.Module]] = {
    **{name: relative(name) for name in NAMES},
    "swin": lambda: RelativeAttention(WIDTH, 2, encoding=Swin(2, 2)),
    "graphormer": WithGraph,
    "sparse": lambda: SparseAttention(WIDTH, 2, patterns.strided(N, 2)),
    "star": lambda: SparseAttention(WIDTH, 2, patterns.star, configuration="union"),
    "torch": Gained,
    "block": Block,
}


def made(name: str) -> tuple[nn.Module, nn.Module]:
    """A layer and its reference, with the same weights."""
    layers = [(LAYERS | MIXERS)[name]().double().eval() for _ in "ab"]
    for layer in layers:
        randomise(layer)
    for part in layers[1].modules():
        if hasattr(part, "implementation"):
            part.implementation = "reference"  # pyright: ignore[reportArgumentType]
    return layers[0], layers[1]


@pytest.mark.rows(21)
@pytest.mark.parametrize("name", LAYERS | MIXERS)
@pytest.mark.parametrize("padded", [False, True])
def test_torch_func(name: str, padded: bool) -> None:
    layer, reference = made(name)
    n, width = (7, 16) if name in MIXERS else (N, WIDTH)
    x, step = tokens(1, n, width), tokens(1, n, width, seed=2)
    given = {"key_padding_mask": some_padding(2, n)[1:]} if padded else {}

    def called(x: Tensor) -> Tensor:
        return layer(x, **given)

    def number(x: Tensor) -> Tensor:
        return called(x).sin().sum()

    def plain(x: Tensor) -> Tensor:
        return reference(x, **given)

    def plain_number(x: Tensor) -> Tensor:
        return plain(x).sin().sum()

    slopes = jacobian(plain, x)
    assert isinstance(slopes, Tensor)
    assert gap(jacrev(called)(x), slopes) <= EXACT
    out, tangent, *_ = jvp(called, (x,), (step,))
    wanted = (slopes.flatten(-3) @ step.flatten()).view_as(x)
    assert gap([out, tangent], [plain(x), wanted]) <= EXACT
    if name not in MIXERS:
        curvature = plain_hessian(plain_number, x)
        assert gap(hessian(number)(x), curvature) <= EXACT


@pytest.mark.parametrize("name", LAYERS | MIXERS)
def test_gradients_of_every_sample(name: str) -> None:
    """vmap over samples with their paddings, of gradients by the parameters."""
    layer, reference = made(name)
    n, width = (7, 16) if name in MIXERS else (N, WIDTH)
    x, padded = tokens(3, n, width), some_padding(3, n)
    parameters: dict[str, Tensor] = dict(layer.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor, padded: Tensor) -> Tensor:
        given = {"key_padding_mask": padded[None]}
        return functional_call(layer, parameters, (x[None],), given).square().sum()

    found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, padded)
    each: list[tuple[Tensor, ...]] = []
    for k in range(3):
        value = reference(x[k : k + 1], key_padding_mask=padded[k : k + 1]).square().sum()
        each.append(torch.autograd.grad(value, list(reference.parameters())))
    wanted = [torch.stack(column) for column in zip(*each, strict=True)]
    assert gap(list(found.values()), wanted) <= EXACT


@pytest.mark.compile
@pytest.mark.parametrize("name", ["none", "sparse"])
def test_transforms_are_compiled(name: str) -> None:
    """A compiled transform cannot look into a custom op: plain torch runs."""
    layer = LAYERS[name]().double().eval()
    x = torch.randn(2, N, WIDTH, dtype=torch.float64)

    def size(x: Tensor) -> Tensor:
        return layer(x).sin().sum()

    def slope(x: Tensor) -> Tensor:
        return torch.func.grad(size)(x)

    torch.compiler.reset()
    found = torch.compile(slope)(x)
    torch.testing.assert_close(found, torch.func.grad(size)(x))
