"""Disentangled attention on a GPU: every dtype against eager, and DeBERTa as a whole."""

from typing import Any

import pytest
import torch
from tests.layers.test_deberta import V3, batch, gradients, made, off
from tests.ops.cases import TOLERANCE
from tests.ops.disentangled_cases import (
    Case,
    Inputs,
    agreement,
    drawn,
    expected,
    operator,
    results,
)
from tests.ops.references import disentangled_attention_reference
from torch import Tensor

from everyformer.errors import InputError
from everyformer.layers import LogBuckets
from everyformer.layers.hugging_face.deberta import adapt
from everyformer.ops import disentangled_attention
from everyformer.ops.dropping import kept

pytestmark = [
    pytest.mark.gpu,
    # By the thread of a backward pass whose first kernel is a product.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
CASES = [
    Case(2, 2, 1, 1, 16),
    Case(2, 2, 127, 127, 64),
    Case(1, 2, 200, 333, 40, padding=True),
    Case(1, 2, 333, 200, 128, kind="clipped"),
    Case(2, 1, 500, 480, 64, kind="wide"),
    Case(1, 2, 256, 256, 32, kind="one"),
    Case(1, 2, 384, 384, 80, terms="c2p", padding=True),
    Case(1, 2, 384, 384, 64, terms="p2c"),
    Case(2, 2, 200, 333, 64, padding=True, dropout=0.2),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_error_is_at_most_twice_that_of_eager(case: Case, dtype: torch.dtype) -> None:
    """Or half of the tolerance, where eager is close to exact; LSE and all gradients."""
    from everyformer.ops.disentangled_attention import launch

    x = drawn(case, dtype)
    wanted = expected(x)
    ours = results(launch, x, "cuda")
    ours["lse"] = ours["lse"] * torch.tensor(2.0).log()
    theirs = eager(x)
    for name, want in wanted.items():
        error = agreement({name: ours[name]}, {name: want})
        other = agreement({name: theirs[name]}, {name: want}) if name in theirs else 0.0
        assert error <= max(2 * other, TOLERANCE[dtype] / 2), (name, error, other)


def eager(x: Inputs) -> dict[str, Tensor]:
    """As transformers writes it, every product in the dtype of q."""
    leaves = [None if y is None else y.cuda().requires_grad_() for y in x[:5]]
    q, k, v, c2p, p2c = leaves
    assert q is not None
    assert k is not None
    assert v is not None
    n_q, n_k = q.shape[2], k.shape[2]
    places = torch.arange(n_q)[:, None] - torch.arange(n_k) + n_k - 1
    buckets = x.index[places].cuda().expand(*q.shape[:2], -1, -1)
    scores = q @ k.mT * x.scale
    if c2p is not None:
        scores = scores + c2p.gather(-1, buckets) * x.scale
    if p2c is not None:
        scores = scores + p2c.gather(-1, buckets.mT).mT * x.scale
    hidden = torch.zeros(1, 1, 1, n_k, dtype=torch.bool, device="cuda")
    if x.key_padding is not None:
        hidden = x.key_padding.cuda()[:, None, None]
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
    weights = weights.masked_fill(hidden.all(-1, keepdim=True), 0.0)
    if x.seed is not None:
        axes = (torch.arange(size, device="cuda") for size in weights.shape)
        b, h, i, j = axes
        places = b[:, None, None, None], h[:, None, None], i[:, None], j
        weights = weights * kept(x.seed.cuda(), *places, x.dropout, weights.dtype)
    out = weights @ v
    there = [y for y in leaves if y is not None]
    found = torch.autograd.grad(out, there, x.grad_out.cuda())
    names = [
        n
        for n, y in zip(("q", "k", "v", "c2p", "p2c"), leaves, strict=True)
        if y is not None
    ]
    return {"out": out.detach().cpu()} | {
        f"d{name}": y.cpu() for name, y in zip(names, found, strict=True)
    }


def deberta_inputs(n: int, dtype: torch.dtype, heads: int = 3) -> list[Tensor]:
    made_by = torch.Generator("cuda").manual_seed(0)
    buckets = LogBuckets()
    sizes = (64, 64, 64, buckets.size, buckets.size)
    tensors = [
        torch.randn(2, heads, n, size, generator=made_by, device="cuda").to(dtype)
        for size in sizes
    ]
    index = buckets(torch.arange(1 - n, n, device="cuda"))
    return [*(x.requires_grad_() for x in tensors), index]


@pytest.mark.parametrize("n", [1000, 1024])
def test_buckets_of_version_3_and_equal_bits(n: int) -> None:
    """Near, far and in between; the sums of wide buckets have the same bits each time."""
    *leaves, index = deberta_inputs(n, torch.bfloat16)
    q, k, v, c2p, p2c = leaves
    found: list[list[Tensor]] = []
    for _ in range(3):
        out = disentangled_attention(q, k, v, c2p, p2c, index)
        found.append([out.detach(), *torch.autograd.grad(out.sin().sum(), leaves)])
    for again in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], again, strict=True))
    exact = [x.detach().double().cpu().requires_grad_() for x in leaves]
    q, k, v, c2p, p2c = exact
    out = disentangled_attention_reference(q, k, v, c2p, p2c, index.cpu())
    wanted = [out.detach(), *torch.autograd.grad(out.sin().sum(), exact)]
    for ours, want in zip(found[0], wanted, strict=True):
        size = max(1.0, float(want.abs().max()))
        assert float((ours.cpu().double() - want).abs().max()) / size < 2e-2


def test_memory_is_linear() -> None:
    """Four times the tokens take four times the memory, forward and backward."""
    peaks: list[int] = []
    for n in (2048, 8192):
        *leaves, index = deberta_inputs(n, torch.bfloat16)
        q, k, v, c2p, p2c = leaves
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = disentangled_attention(q, k, v, c2p, p2c, index)
        torch.autograd.grad(out.sum(), leaves)
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 4.5 * peaks[0]


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_compiled_and_second_derivatives() -> None:
    torch.compiler.reset()
    case = operator(Case(1, 2, 40, 40, 16, padding=True))
    leaves = case.leaves(torch.float32, "cuda")
    found: list[Any] = []
    for function in (case.fast, torch.compile(case.fast, fullgraph=True), case.plain):
        out = function(*leaves)
        found.append([out.detach(), *torch.autograd.grad(out.sin().sum(), leaves)])
    for some in found[:2]:
        for one, two in zip(some, found[2], strict=True):
            assert float((one - two).abs().max()) < 2e-5 * max(1.0, float(two.abs().max()))
    slopes = torch.autograd.grad(case.fast(*leaves).sum(), leaves, create_graph=True)
    wanted = torch.autograd.grad(case.plain(*leaves).sum(), leaves, create_graph=True)
    ones, twos = (
        torch.autograd.grad(sum((x.square().sum() for x in y), torch.tensor(0.0)), leaves)
        for y in (slopes, wanted)
    )
    for one, two in zip(ones, twos, strict=True):
        assert float((one - two).abs().max()) < 2e-4 * max(1.0, float(two.abs().max()))


@pytest.mark.parametrize("version", [1, 2])
def test_models(version: int) -> None:
    """float32: the logits and all gradients; bf16: as close to float32 as theirs."""
    more = V3 if version == 2 else {}
    model = made(version, more).cuda()
    given = {name: x.cuda() for name, x in batch(300).items()}
    wanted = gradients(model, given)
    half = model.bfloat16()(**given).logits.detach().float()
    model.float()
    adapt(model)
    with torch.no_grad():
        model.load_state_dict(made(version, more).state_dict())
    assert off(gradients(model, given), wanted) < 1e-5
    ours = model.bfloat16()(**given).logits.detach().float()
    errors = [float((x - wanted["logits"]).abs().max()) for x in (ours, half)]
    assert errors[0] < 2 * errors[1]


def test_refusals() -> None:
    *leaves, index = deberta_inputs(64, torch.bfloat16)
    q, k, v, c2p, p2c = leaves
    with pytest.raises(InputError, match="index decreases"):
        disentangled_attention(q, k, v, c2p, p2c, index.flip(0))
    with pytest.raises(InputError, match="float64 runs on the CPU only"):
        disentangled_attention(q.double(), k.double(), v.double(), c2p, p2c, index)
    with pytest.raises(InputError, match="float64 runs on the CPU only"):
        disentangled_attention(q, k, v, c2p.double(), p2c, index)
    with pytest.raises(InputError, match="use one"):
        disentangled_attention(q, k, v, c2p, p2c, index.cpu())
