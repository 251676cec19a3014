"""Operators within `torch.compile`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.contracts.operator import normal
from tests.ops.references import toeplitz_attention_reference
from torch import Tensor
from torch.func import jacrev, jvp

from everyformer import patterns
from everyformer.ops import light_convolution, sparse_attention, toeplitz_attention
from everyformer.ops.light_convolution.reference import convolve
from everyformer.ops.sparse_attention.reference import sparse_attention_reference


@pytest.mark.compile
def test_inductor_compiles_all_operators() -> None:
    """As one graph, forward and backward, with heads inside as a layer has them."""
    torch.compiler.reset()
    part = patterns.strided(9, 3).union().parts[0]
    padded = torch.zeros(1, 9, dtype=torch.bool)
    padded[0, 6:] = True
    tensors = [normal(1, 9, 3, 4), normal(1, 9, 3, 4) + 1, normal(2, 17), normal(1, 17)]
    leaves = [x.requires_grad_() for x in (*tensors, normal(1, 9, 16), normal(2, 4))]

    def model(attend: Any, sparsely: Any, mix: Any) -> Callable[..., Tensor]:
        def called(
            x: Tensor, y: Tensor, bias: Tensor, gain: Tensor, z: Tensor, f: Tensor
        ) -> Tensor:
            q, k, v = (t.transpose(1, 2)[:, :2] for t in (x, y, x * y))
            one = attend(q, k, v, bias, gain, key_padding=padded)
            two = sparsely(one.sin(), k, v, part, key_padding=padded)
            return (two.sum(1).repeat(1, 1, 4) * mix(z.cos(), f)).sin()

        return called

    fast = model(toeplitz_attention, sparse_attention, light_convolution)
    plain = model(
        toeplitz_attention_reference,
        sparse_attention_reference,
        lambda x, f: convolve(x, f, 1),  # pyright: ignore[reportUnknownLambdaType]
    )
    out, wanted = torch.compile(fast, fullgraph=True)(*leaves), plain(*leaves)
    assert (out - wanted).abs().max() < 1e-12
    one, two = (torch.autograd.grad(y.square().sum(), leaves) for y in (out, wanted))
    for a, b in zip(one, two, strict=True):
        assert (a - b).abs().max() < 1e-10


@pytest.mark.compile
def test_inductor_compiles_all_modes() -> None:
    """A cache that grows, heads in groups, masks; packed sequences; dropout."""
    torch.compiler.reset()
    seed, begins = torch.tensor([5]), torch.tensor([0, 4, 9], dtype=torch.int32)

    def model(attend: Any) -> Callable[..., Tensor]:
        def called(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
            offset = y.shape[2] - x.shape[2]
            one = attend(
                x, y[:, :1], y[:, 1:], causal=True, offset=offset, attn_mask=mask,
                dropout=0.3, seed=seed,
            )  # fmt: skip
            packed = y[:, :, :9]
            return one.sum() + attend(packed, packed, packed, sequences=begins)

        return called

    fast = torch.compile(model(toeplitz_attention), fullgraph=True, dynamic=True)
    plain = model(toeplitz_attention_reference)
    for n_k in (9, 11):
        leaves = [
            normal(1, 4, 3, 2).requires_grad_(),
            normal(1, 2, n_k, 2).requires_grad_(),
        ]
        mask = normal(3, n_k) > -1.0
        out, wanted = (function(*leaves, mask) for function in (fast, plain))
        assert (out - wanted).abs().max() < 1e-12
        one, two = (torch.autograd.grad(y.square().sum(), leaves) for y in (out, wanted))
        assert all((a - b).abs().max() < 1e-10 for a, b in zip(one, two, strict=True))


@pytest.mark.compile
def test_compiled_dropout_draws_seeds() -> None:
    torch.compiler.reset()
    q = normal(1, 2, 9, 4)

    @torch.compile(fullgraph=True)
    def attend(q: Tensor) -> Tensor:
        return toeplitz_attention(q, q, q, dropout=0.5)

    one, two = attend(q), attend(q)
    assert not torch.equal(one, two)


@pytest.mark.compile
def test_compiled_forward_mode() -> None:
    """Derivatives that travel forward do so through compiled operators, too."""
    torch.compiler.reset()
    part = patterns.Window(5, 1, 1)

    def model(x: Tensor) -> Tensor:
        q = x[None, None, :, :4]
        mixed = toeplitz_attention(q, q, q) + sparse_attention(q, q, q, part)
        return mixed.sum() + light_convolution(x, x[:2, :3]).sin()

    def tangent(x: Tensor, step: Tensor) -> Tensor:
        return jvp(model, (x,), (step,))[1]

    x, step = normal(5, 16), normal(5, 16).cos()
    found, wanted = (
        torch.compile(tangent)(x, step),
        torch.einsum("abcd,cd->ab", jacrev(model)(x), step),
    )
    assert (found - wanted).abs().max() < 1e-10
