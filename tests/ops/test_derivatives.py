"""Derivatives that only some operators have, or at the border of what they take."""

from importlib import import_module
from typing import Any

import pytest
import torch
from tests.contracts.operator import EXACT
from tests.ops import disentangled_cases
from tests.ops.cases import TOLERANCE, Case
from tests.ops.operators import (
    Operator,
    gap,
    slopes,
    sparse,
    toeplitz,
)
from tests.ops.pairwise_cases import Pairs
from tests.ops.pairwise_cases import operator as pairwise
from tests.ops.references import toeplitz_attention_reference
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vjp, vmap

from everyformer import patterns
from everyformer.ops import attention_rules, sparse_attention, toeplitz_attention

LONGER = toeplitz(Case(2, 2, 9, 13, 3, padding="some"))
CASES = {
    "toeplitz": LONGER,
    "pairwise": pairwise(Pairs(padding=True)),
    "sparse": sparse(patterns.Window(9, 2, 1), "some", 3),
}


def test_a_bias_of_minus_infinity() -> None:
    """It has no neighbours; those that are finite have derivatives."""
    case = toeplitz(Case(1, 1, 5, 4, 1, bias="window", gain="zero"))
    q, k, v, bias, gain = case.leaves()
    finite = bias.detach().isfinite()

    def free(*x: Tensor) -> Tensor:
        rows = torch.where(finite, x[3], -torch.inf)
        return case.fast(*x[:3], rows, x[4])

    leaves = [q, k, v, torch.zeros_like(bias).requires_grad_(), gain]
    assert gradcheck(free, leaves, fast_mode=True)
    assert gradgradcheck(free, leaves, fast_mode=True)


def test_the_memory_of_second_derivatives_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sequences one by one give the same."""
    case = LONGER
    wanted = slopes(case.plain, case.leaves(), 2)
    monkeypatch.setattr(attention_rules, "STEP_ENTRIES", 1)
    assert gap(slopes(case.fast, case.leaves(), 2), wanted) <= EXACT


def test_arguments_that_are_one_tensor() -> None:
    """And one without a gradient."""
    part = patterns.Window(4, 1, 1)
    x, v = torch.randn(2, 1, 1, 4, 2, dtype=torch.float64).unbind()
    x = x.clone().requires_grad_()

    def dense(x: Tensor) -> Tensor:
        return toeplitz_attention(x, x, v)

    def sparsely(x: Tensor) -> Tensor:
        return sparse_attention(x, x, v, part)

    assert gradgradcheck(dense, [x])
    assert gradgradcheck(sparsely, [x])


def test_half_precision() -> None:
    """Second derivatives have the dtypes of their arguments."""
    case = LONGER
    wanted = slopes(case.plain, case.leaves(torch.bfloat16), 2)
    found = slopes(case.fast, case.leaves(torch.bfloat16), 2)
    assert [x.dtype for x in found] == [torch.bfloat16] * 5
    assert gap(found, wanted) <= 0.1


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", ["toeplitz", "pairwise", "sparse"])
def test_derivatives_within_autocast(name: str, order: int) -> None:
    """They are those without it: autocast rounds what the operator is given, no more."""
    case = CASES[name]
    wanted = slopes(case.fast, case.leaves(torch.bfloat16), order)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = slopes(case.fast, case.leaves(torch.bfloat16), order)
    assert gap(found, wanted) == 0.0


def test_paddings_of_their_own() -> None:
    """vmap over samples with their masks, as for gradients of each sample."""
    random = torch.Generator().manual_seed(0)
    q = torch.randn(3, 1, 2, 5, 2, generator=random, dtype=torch.float64)
    bias, gain = (torch.randn(2, 9, generator=random, dtype=torch.float64) for _ in "bc")
    padded = torch.rand(3, 1, 5, generator=random) < 0.4
    part = patterns.Star(5, 1)

    def losses(bias: Tensor, gain: Tensor, q: Tensor, padded: Tensor) -> Tensor:
        out = toeplitz_attention(q, q, q, bias, gain, key_padding=padded)
        return sparse_attention(out, q, q, part, key_padding=padded).square().sum()

    found = vmap(grad(losses, (0, 1, 2)), in_dims=(None, None, 0, 0))(bias, gain, q, padded)
    each = [grad(losses, (0, 1, 2))(bias, gain, q[k], padded[k]) for k in range(3)]
    wanted = [torch.stack(column) for column in zip(*each, strict=True)]
    assert gap(found, wanted) <= EXACT
    assert found[0].shape == (3, 2, 9)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("mask", ["of samples", "of all", "of heads"])
def test_vmap_with_masks_and_dropped_weights(mask: str, dropout: float) -> None:
    """Samples drop the same weights, each as it would alone."""
    random, seed = torch.Generator().manual_seed(0), torch.tensor([3])
    q = torch.randn(3, 1, 4, 5, 2, generator=random, dtype=torch.float64)
    shape = {"of samples": (3, 5, 5), "of all": (5, 5), "of heads": (4, 1, 5)}[mask]
    counts = torch.rand(*shape, generator=random) < 0.6
    axes = 0, 0 if mask == "of samples" else None

    def slopes_of(attend: Any) -> Any:
        def loss(q: Tensor, counts: Tensor) -> Tensor:
            k, v = q[:, :2], q[:, 2:].sin()
            out = attend(q, k, v, attn_mask=counts, dropout=dropout, seed=seed)
            return out.square().sum()

        return vmap(grad(loss), in_dims=axes)

    found = slopes_of(toeplitz_attention)(q, counts)
    wanted = slopes_of(toeplitz_attention_reference)(q, counts)
    assert gap(found, wanted) <= EXACT
    assert wanted.abs().max() > 0


def test_vmap_draws_seeds_as_torch_is_told() -> None:
    q = torch.randn(1, 1, 6, 2).expand(3, 1, 1, 6, 2)

    def attend(q: Tensor) -> Tensor:
        return toeplitz_attention(q, q, q, dropout=0.5)

    for randomness in ("same", "different"):
        rows = vmap(attend, randomness=randomness)(q)
        assert torch.equal(rows[0], rows[1]) == (randomness == "same")


def test_second_derivatives_drop_the_same_weights_in_every_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sequences one by one: each keeps its number in the batch."""
    case = toeplitz(Case(3, 2, 4, 5, 2, dropout=0.4, group=2, mask="bool"))
    wanted = slopes(case.plain, case.leaves(), 2)
    monkeypatch.setattr(attention_rules, "STEP_ENTRIES", 1)
    assert gap(slopes(case.fast, case.leaves(), 2), wanted) <= EXACT


def several_pulled_back(function: Any, tensors: Any, upstream: Tensor) -> Any:
    """Gradients for several gradients of one output, which share what is saved of it."""
    return vmap(vjp(function, *tensors)[1])(upstream)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU")
@pytest.mark.parametrize(
    ("name", "case"),
    {
        "toeplitz": toeplitz(Case(1, 1, 5, 7, 16)),
        "disentangled": disentangled_cases.operator(
            disentangled_cases.Case(1, 1, 5, 7, 16)
        ),
        "pairwise": pairwise(Pairs(1, 1, 5, 7, d=16)),
        "sparse": sparse(patterns.Star(5, 1), d=16),
    }.items(),
)
def test_one_sequence_of_one_head_for_several_gradients(
    name: str, case: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its LSE is expanded by vmap: kernels that count in it would read beyond its end."""
    pytest.importorskip("triton")
    paths = import_module(f"everyformer.ops.{name}_attention.paths")
    monkeypatch.setattr(paths, "_by_kernels", torch.is_tensor)
    tensors = [x[:1] for x in case.tensors]
    like = case.plain(*tensors)
    upstream = torch.stack([like.sin(), like.cos(), like + 1])
    single = [x.float() for x in tensors]
    found = several_pulled_back(case.fast, single, upstream.float())
    wanted = several_pulled_back(case.plain, tensors, upstream)
    assert gap(found, wanted) <= TOLERANCE[torch.float32]
