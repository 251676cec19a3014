"""Mixers against their formulas, with padding; what they refuse; that they compile."""

from collections.abc import Callable, Sequence

import pytest
import torch
from tests.layers.plain import EXACT, randomise, some_padding, tokens
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers import (
    AverageAttention,
    BilinearProjection,
    DynamicConvolution,
    LightConvolution,
    SeparableConvolution,
)

N, D = 7, 16

MAKERS: dict[str, Callable[[], nn.Module]] = {
    "average": lambda: AverageAttention(D),
    "bilinear": lambda: BilinearProjection(D, N),
    "separable": lambda: SeparableConvolution(D, 4),
    "light": lambda: LightConvolution(D, filters=2, filter_length=5),
    "light, normalised": lambda: LightConvolution(
        D, filters=4, filter_length=6, normalised=True
    ),
    "dynamic": lambda: DynamicConvolution(D, filters=2, filter_length=6),
}


def made(name: str) -> nn.Module:
    layer = MAKERS[name]().double()
    randomise(layer)
    return layer


def matrix(layer: nn.Module, c: int, u: Tensor, seen: Tensor) -> Tensor:
    """M with y_i = W_O (sum_j M_ij u_j)_c: what mixes dimension c."""
    n = len(u)
    M = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            if not seen[j]:
                continue
            if isinstance(layer, AverageAttention):
                M[i, j] = 1 / int(seen.sum())
            elif isinstance(layer, BilinearProjection):
                M[i, j] = layer.position_weight[i, j]
            elif isinstance(layer, DynamicConvolution):
                k = j - i + (layer.filter_length - 1) // 2
                own = layer.filter_proj(u[i]).view(layer.filters, -1).softmax(-1)
                if 0 <= k < layer.filter_length:
                    M[i, j] = own[c // (D // layer.filters), k]
            else:
                filters = layer.get_parameter("filters")
                if isinstance(layer, LightConvolution) and layer.normalised:
                    filters = torch.softmax(filters, -1)
                count, length = filters.shape
                k = j - i + (length - 1) // 2
                if 0 <= k < length:
                    M[i, j] = filters[c // (D // count), k]
    return M


def plain(layer: nn.Module, x: Tensor, padded: Tensor) -> Tensor:
    """The formula with the whole matrix, sequence by sequence."""
    u = x
    if isinstance(layer, LightConvolution | DynamicConvolution):
        value, gate = layer.in_proj(x).chunk(2, -1)
        u = value * torch.sigmoid(gate)
    mixed = torch.stack(
        [
            torch.stack([matrix(layer, c, s, ~p) @ s[:, c] for c in range(D)], -1)
            for s, p in zip(u, padded, strict=True)
        ]
    )
    projection = layer.get_submodule("out_proj")
    assert isinstance(projection, nn.Linear)
    return mixed @ projection.weight.T + projection.bias


@pytest.mark.parametrize("name", MAKERS)
def test_the_formula(name: str) -> None:
    layer, x = made(name), tokens(3, N, D)
    for padded in (torch.zeros(3, N, dtype=torch.bool), some_padding(3, N)):
        out = layer(x, key_padding_mask=padded)
        assert (out - plain(layer, x, padded)).abs().max() <= EXACT
    assert torch.equal(layer(x), layer(x, key_padding_mask=torch.zeros_like(padded)))


@pytest.mark.parametrize("name", MAKERS)
def test_padding_is_not_seen(name: str) -> None:
    """Others do not change when a padded token does; without the mask they do."""
    layer, x, padded = made(name), tokens(3, N, D), some_padding(3, N)
    changed = x.masked_fill(padded[..., None], 9.0)
    pair = [layer(each, key_padding_mask=padded) for each in (x, changed)]
    assert torch.equal(pair[0][~padded], pair[1][~padded])
    pair = [layer(each) for each in (x, changed)]
    assert (pair[0] - pair[1])[~padded].abs().max() > 1e-3


@pytest.mark.parametrize("name", MAKERS)
def test_half_precision_and_gradients(name: str) -> None:
    layer, x = made(name), tokens(2, N, D)
    exact = layer(x)
    out = layer.to(torch.bfloat16)(x.bfloat16())
    assert out.dtype == torch.bfloat16
    assert (out.double() - exact).abs().max() <= 0.05 * exact.abs().max()
    out.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in layer.parameters())
    layer.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x.float()).dtype == torch.bfloat16


@pytest.mark.parametrize("name", MAKERS)
def test_all_padding_leaves_the_bias(name: str) -> None:
    layer, x = made(name), tokens(1, N, D)
    out = layer(x, key_padding_mask=torch.ones(1, N, dtype=torch.bool))
    assert (out - layer.get_submodule("out_proj").bias).abs().max() <= EXACT


@pytest.mark.parametrize("name", MAKERS)
def test_gradients_are_right(name: str) -> None:
    layer, x, padded = made(name), tokens(2, N, D).requires_grad_(), some_padding(2, N)
    for mask in (None, padded):

        def forward(x: Tensor, *_: Tensor, mask: Tensor | None = mask) -> Tensor:
            return layer(x, key_padding_mask=mask)

        inputs = (x, *layer.parameters())
        assert torch.autograd.gradcheck(forward, inputs, fast_mode=True)


@pytest.mark.parametrize("name", MAKERS)
def test_batches_of_batches_and_weights_from_a_file(name: str) -> None:
    layer, x = made(name), tokens(2, 3, N, D)
    padded = some_padding(6, N).unflatten(0, (2, 3))
    out = layer(x, key_padding_mask=padded)
    for k in range(2):
        apart = [layer(x[k, i], key_padding_mask=padded[k, i]) for i in range(3)]
        assert (out[k] - torch.stack(apart)).abs().max() <= EXACT
    again = MAKERS[name]().double()
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(x), layer(x))


def test_without_tokens_in_its_filters_dynamic_is_light() -> None:
    dynamic, x = made("dynamic"), tokens(3, N, D)
    assert isinstance(dynamic, DynamicConvolution)
    light = LightConvolution(D, filters=2, filter_length=6, normalised=True).double()
    with torch.no_grad():
        dynamic.filter_proj.weight.zero_()
        light.filters.copy_(dynamic.filter_proj.bias.view(2, 6))
    light.load_state_dict(dynamic.state_dict() | {"filters": light.filters}, strict=False)
    assert (light(x) - dynamic(x)).abs().max() <= EXACT
    with torch.no_grad():
        dynamic.filter_proj.weight[0] = 1.0
    assert (light(x) - dynamic(x)).abs().max() > 1e-3


def test_any_length_but_for_the_projection() -> None:
    for name in ("average", "separable", "light", "dynamic"):
        for n in (1, 2, 40):
            assert made(name)(tokens(n, D)).shape == (n, D)


def test_other_lengths_of_a_bilinear_projection() -> None:
    layer, x = made("bilinear"), tokens(2, N + 1, D)
    with pytest.raises(InputError, match=r"8 tokens, but the position matrix .* 7 x 7"):
        layer(x)
    with pytest.raises(InputError, match="shorter=True"):
        layer(x[:, :3])
    assert isinstance(layer, BilinearProjection)
    layer.shorter = True
    out = layer.position_weight[:3, :3] @ x[:, :3] @ layer.out_proj.weight.T
    assert (layer(x[:, :3]) - out - layer.out_proj.bias).abs().max() <= EXACT
    with pytest.raises(InputError, match="larger seq_len"):
        layer(x)


@pytest.mark.unhooked
@pytest.mark.parametrize("name", MAKERS)
def test_refusals(name: str) -> None:
    layer = made(name)
    with pytest.raises(InputError, match=r"needs \(\*batch, n, 16\)"):
        layer(tokens(2, N, D + 1))
    with pytest.raises(InputError, match="floating-point"):
        layer(torch.zeros(2, N, D, dtype=torch.long))
    for mask in (torch.zeros(2, N), torch.zeros(2, N + 1, dtype=torch.bool)):
        with pytest.raises(InputError, match="one bool per token"):
            layer(tokens(2, N, D), key_padding_mask=mask)


def test_filters_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="next multiple is 20"):
        LightConvolution(16, filters=5)
    with pytest.raises(InputError, match="next multiple is 20"):
        DynamicConvolution(16, filters=5)
    with pytest.raises(InputError, match="filter_length=0"):
        SeparableConvolution(16, 0)


class Beside(nn.Module):
    """Several mixers on the same tokens."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(made(name) for name in names)

    def forward(self, x: Tensor, padded: Tensor) -> Tensor:
        return torch.stack([layer(x, key_padding_mask=padded) for layer in self.layers])


@pytest.mark.rows(1)
@pytest.mark.compile
@pytest.mark.parametrize("names", [("bilinear", "light", "dynamic"), tuple(MAKERS)])
def test_mixers_compile(names: Sequence[str]) -> None:
    torch.compiler.reset()
    model, x, padded = Beside(names), tokens(2, N, D), some_padding(2, N)
    compiled = torch.compile(model, fullgraph=True)
    parameters = list(model.parameters())
    pair = [f(x, padded) for f in (compiled, model)]
    assert (pair[0] - pair[1]).abs().max() <= EXACT
    one, two = (torch.autograd.grad(y.square().sum(), parameters) for y in pair)
    for a, b in zip(one, two, strict=True):
        assert (a - b).abs().max() <= 1e-10


@pytest.mark.compile
@pytest.mark.parametrize("name", MAKERS)
def test_mixers_are_exported(name: str) -> None:
    """With a mask, and for any batch; a padding mask is an input, no constant."""
    layer, x, padded = made(name), tokens(2, N, D), some_padding(2, N)
    batch = torch.export.Dim("batch", min=1, max=9)
    shapes = {"x": {0: batch}, "key_padding_mask": {0: batch}}
    program = torch.export.export(
        layer, (x,), {"key_padding_mask": padded}, dynamic_shapes=shapes
    )
    x, padded = tokens(5, N, D, seed=2), some_padding(5, N)
    out = program.module()(x, key_padding_mask=padded)
    assert (out - layer(x, key_padding_mask=padded)).abs().max() <= EXACT
