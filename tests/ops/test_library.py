"""What `torch.compile` is told of the custom ops is what they do, for every layout."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jacrev, jvp

from everyformer import patterns
from everyformer.ops import light_convolution, sparse_attention, toeplitz_attention
from everyformer.ops.light_convolution.library import convolve_op, gradient_op
from everyformer.ops.light_convolution.reference import convolve
from everyformer.ops.sparse_attention import library as sparse
from everyformer.ops.sparse_attention.plans import plan_of
from everyformer.ops.sparse_attention.reference import sparse_attention_reference
from everyformer.ops.toeplitz_attention import library as toeplitz
from everyformer.ops.toeplitz_attention.reference import toeplitz_attention_reference


def normal(*shape: int) -> Tensor:
    random = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def laid_out(layout: str, b: int, h: int, n: int, d: int) -> Tensor:
    match layout:
        case "heads inside":
            return normal(b, n, h, d).transpose(1, 2)
        case "one of a batch":
            return normal(1, n, h, d).transpose(1, 2)
        case "one head":
            return normal(b, n, 1, d).transpose(1, 2)
        case "tokens last":
            return normal(b, h, d, n).mT
        case "every second":
            return normal(b, h, 2 * n, 2 * d)[:, :, ::2, 1::2]
        case "one for all":
            return normal(1, 1, n, d).expand(b, h, n, d)
        case _:
            return normal(b, h, n, d)


LAYOUTS = [
    "contiguous", "heads inside", "one of a batch", "one head", "tokens last",
    "every second", "one for all",
]  # fmt: skip
"""As layers and users have them: (b, h, n, d), of which memory has another idea."""


ALL = ("test_schema", "test_autograd_registration", "test_faketensor")
"""Of `opcheck`; for one layout also the slow test by tracing forward and backward."""


def check(op: Any, given: tuple[Any, ...], layout: str) -> None:
    tracing = ("test_aot_dispatch_dynamic",) if layout == "heads inside" else ()
    torch.library.opcheck(op, given, test_utils=(*ALL, *tracing))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_toeplitz_attention(layout: str) -> None:
    q, k, v = (laid_out(layout, 2, 2, n, 4).detach() for n in (5, 7, 7))
    heads = q.shape[1]
    bias, gain = normal(heads, 22)[:, ::2], normal(1, 11)
    padded = torch.zeros(q.shape[0], 7, dtype=torch.bool)
    padded[:, 6] = True
    leaves = [x.requires_grad_() for x in (q, k, v, bias, gain)]
    x = (*leaves, padded, True, 0.3)
    check(toeplitz.forward_op, x, layout)
    with torch.no_grad():
        out, lse, table = toeplitz.forward_op(*x)
    grad = laid_out(layout, 2, 2, 5, 4).detach().requires_grad_()
    check(toeplitz.gradients_op, (*x, grad, out, lse, table, True, True), layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_attention(layout: str) -> None:
    for part in (patterns.Star(5, 1), patterns.Window(300, 1, 1)):
        q, k, v, grad = (laid_out(layout, 2, 2, part.n, 4) for _ in range(4))
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        handle = plan_of(part).handle
        how = layout if part.n == 5 else "long"
        check(sparse.forward_op, (*leaves, None, handle, 0.3), how)
        with torch.no_grad():
            out, lse = sparse.forward_op(*leaves, None, handle, 0.3)
        given = (grad.detach().requires_grad_(), *leaves, None, out, lse, handle, 0.3)
        check(sparse.gradients_op, given, how)


@pytest.mark.parametrize("n", [5, 70])
@pytest.mark.parametrize("layout", ["contiguous", "tokens last", "every second"])
def test_light_convolution(layout: str, n: int) -> None:
    x, grad = (laid_out(layout, 1, 2, n, 16)[0].detach() for _ in range(2))
    filters = normal(4, 2).mT.requires_grad_()
    check(convolve_op, (x.requires_grad_(), filters, 1), layout)
    check(gradient_op, (grad.requires_grad_(), x, 2, 4, 1), layout)


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
