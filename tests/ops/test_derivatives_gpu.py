"""On a GPU: second derivatives, `torch.func`, and training with inductor."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.contracts.operator import TRANSFORMS
from tests.ops.cases import Case
from tests.ops.operators import convolution, gap, slopes, sparse, toeplitz
from tests.ops.references import toeplitz_attention_reference
from torch import Tensor

from everyformer import patterns
from everyformer.layers import RelativeAttention, SparseAttention
from everyformer.ops import light_convolution, toeplitz_attention
from everyformer.ops.light_convolution.reference import convolve
from everyformer.ops.sparse_attention.operator import attend
from everyformer.ops.sparse_attention.plans import plan_of
from everyformer.ops.sparse_attention.reference import sparse_attention_reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
]

CLOSE = 2e-4
"""Of numbers made of derivatives in float32, relative to the largest."""

OPERATORS = {
    "toeplitz": toeplitz(Case(2, 2, 40, 33, 16, padding="some")),
    "toeplitz, causal": toeplitz(Case(1, 2, 70, 70, 32, causal=True, bias="shared")),
    "toeplitz, gain": toeplitz(Case(2, 1, 20, 20, 16, bias="none")),
    "toeplitz, cache": toeplitz(
        Case(2, 4, 20, 40, 16, causal=True, offset=20, group=2, mask="added")
    ),
    "toeplitz, dropped": toeplitz(
        Case(1, 2, 40, 40, 16, sequences=(25, 15), dropout=0.3, mask="bool")
    ),
    "sparse, band": sparse(patterns.Window(70, 2, 3), "some", d=16),
    "sparse, star": sparse(patterns.Star(70, 1), d=16),
    "sparse, pieces": sparse(patterns.big_bird(300, 3, 2, 1).parts[0], d=16),
    "convolution": convolution(70, 64, 2, 9),
}


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


@pytest.mark.parametrize("name", OPERATORS)
def test_two_orders(name: str) -> None:
    case = OPERATORS[name]
    for order in (1, 2):
        found = slopes(case.fast, case.leaves(torch.float32, "cuda"), order)
        wanted = slopes(case.plain, case.leaves(), order)
        assert gap(found, wanted) <= CLOSE
        assert any(x.abs().max() > 0 for x in wanted)


@pytest.mark.parametrize(
    "transform", ["grad", "grad of grad", "jvp", "jvp of grad", "vmap", "vmap of grad"]
)
@pytest.mark.parametrize("name", OPERATORS)
def test_torch_func(name: str, transform: str) -> None:
    case, change = OPERATORS[name], TRANSFORMS[transform]
    on_gpu = [x.to("cuda", torch.float32) for x in case.tensors]
    found, wanted = change(case.fast, on_gpu), change(case.plain, list(case.tensors))
    assert gap(found, wanted) <= CLOSE


def test_double_precision_of_sparse_attention() -> None:
    """It runs in plain torch."""
    case = sparse(patterns.Star(20, 1), "all", d=8)
    found = slopes(case.fast, case.leaves(device="cuda"), 2)
    assert gap(found, slopes(case.plain, case.leaves(), 2)) <= 1e-10


@pytest.mark.parametrize("batch", [1, 2])
def test_inductor_trains_all_operators(batch: int) -> None:
    """As one graph, with heads inside as a layer has them."""
    torch.compiler.reset()
    n, part = 40, patterns.strided(40, 5).union().parts[0]
    handle = plan_of(part).handle
    padded = torch.zeros(batch, n, dtype=torch.bool, device="cuda")
    padded[0, 30:] = True
    random = torch.Generator().manual_seed(0)
    shapes = [
        (batch, n, 3, 16),
        (batch, n, 3, 16),
        (2, 79),
        (1, 79),
        (batch, n, 64),
        (2, 9),
    ]
    leaves = [torch.randn(*s, generator=random).cuda().requires_grad_() for s in shapes]

    def model(attention: Any, sparsely: Any, mix: Any) -> Callable[..., Tensor]:
        def called(
            x: Tensor, y: Tensor, bias: Tensor, gain: Tensor, z: Tensor, f: Tensor
        ) -> Tensor:
            q, k, v = (t.transpose(1, 2)[:, :2] for t in (x, y, x * y))
            one = attention(q, k, v, bias, gain, key_padding=padded)
            two = sparsely(one.sin(), k, v)
            return (two.sum(1).repeat(1, 1, 4) * mix(z.cos(), f)).sin()

        return called

    def by_kernels(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, handle, key_padding=padded)

    def by_masks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sparse_attention_reference(q, k, v, part, key_padding=padded)

    def plain_mix(x: Tensor, f: Tensor) -> Tensor:
        return convolve(x, f, 4)

    fast = torch.compile(
        model(toeplitz_attention, by_kernels, light_convolution), fullgraph=True
    )
    plain = model(toeplitz_attention_reference, by_masks, plain_mix)
    out, wanted = fast(*leaves), plain(*leaves)
    pair = [torch.autograd.grad(y.square().sum(), leaves) for y in (out, wanted)]
    assert gap([out, *pair[0]], [wanted, *pair[1]]) <= CLOSE


@pytest.mark.parametrize("sparsely", [False, True])
def test_inductor_trains_layers(sparsely: bool) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    layer: Any = (
        SparseAttention(64, 4, patterns.strided(200, 8))
        if sparsely
        else RelativeAttention(64, 4, encoding="t5", gain=True, max_len=256)
    )
    layer = layer.cuda()
    x = torch.randn(1, 200, 64, device="cuda")
    compiled = torch.compile(layer, fullgraph=True)
    found: list[Any] = []
    for module in (compiled, layer):
        out = module(x)
        found.append(
            [out, *torch.autograd.grad(out.square().sum(), list(layer.parameters()))]
        )
    assert gap(*found) <= 1e-3
