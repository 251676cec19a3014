"""On a GPU: every dtype against eager, and all that PyTorch does with an operator."""

import itertools
import socket
from collections.abc import Generator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.ops.cases import TOLERANCE, Case, expected, inputs
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from everyformer.bench.attention import gate
from everyformer.layers import RelativeAttention
from everyformer.ops import toeplitz_attention
from everyformer.ops.toeplitz_attention.reference import toeplitz

pytestmark = pytest.mark.gpu

HALF = [torch.bfloat16, torch.float16, torch.float32]
CASES = [
    Case(batch=2, heads=2, n_q=1, n_k=1, d=16),
    Case(batch=2, heads=2, n_q=127, n_k=127, d=64),
    Case(batch=1, heads=3, n_q=1000, n_k=1000, d=64, causal=True),
    Case(batch=1, heads=2, n_q=200, n_k=333, d=40, padding="some"),
    Case(batch=2, heads=2, n_q=333, n_k=200, d=128, causal=True, gain="negative"),
    Case(batch=2, heads=2, n_q=130, n_k=130, d=80, padding="all"),
    Case(batch=2, heads=2, n_q=130, n_k=130, d=16, gain="zero"),
    Case(batch=2, heads=2, n_q=64, n_k=257, d=32, bias="window"),
    Case(batch=2, heads=2, n_q=257, n_k=257, d=32, bias="none", gain="shared"),
    Case(batch=2, heads=2, n_q=257, n_k=257, d=32, bias="shared", gain="none"),
]


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    *,
    causal: bool,
    scale: float,
    key_padding: Tensor | None,
) -> Tensor:
    """As one writes it in PyTorch, every product in the dtype of q."""
    n_q, n_k = q.shape[2], k.shape[2]
    scores = q @ k.transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + toeplitz(bias.to(q.dtype), n_q, n_k)
    hidden = torch.zeros(1, 1, n_q, n_k, dtype=torch.bool, device=q.device)
    if causal:
        hidden = hidden | torch.ones_like(hidden).triu(1)
    if key_padding is not None:
        hidden = hidden | key_padding[:, None, None, :]
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    weights = weights.masked_fill(hidden.all(dim=-1, keepdim=True), 0.0)
    if gain is not None:
        weights = weights * toeplitz(gain.to(q.dtype), n_q, n_k)
    return weights @ v


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("case", CASES)
def test_error_is_at_most_twice_that_of_eager(case: Case, dtype: torch.dtype) -> None:
    """Or half of the tolerance, where eager is close to exact."""
    given = inputs(case, dtype).to(dtype, torch.float32)
    wanted = expected(given)
    errors: list[dict[str, float]] = []
    padding = None if given.key_padding is None else given.key_padding.cuda()
    options: dict[str, Any] = {"causal": given.causal, "scale": given.scale}
    for function in (toeplitz_attention, eager):
        tensors = (given.q, given.k, given.v, given.bias, given.gain)
        leaves: list[Any] = [
            None if t is None else t.cuda().requires_grad_() for t in tensors
        ]
        out = function(*leaves, **options, key_padding=padding)
        there = [leaf for leaf in leaves if leaf is not None]
        gradients = torch.autograd.grad(out, there, given.grad_out.cuda().to(out.dtype))
        names = [n for n in wanted if n not in ("out", "lse")]
        results = {"out": out, **dict(zip(names, gradients, strict=True))}
        errors.append({name: _error(r, wanted[name]) for name, r in results.items()})
    ours, theirs = errors
    for name, error in ours.items():
        assert error <= max(2 * theirs[name], TOLERANCE[dtype] / 2), (name, error, theirs)


def _error(found: Tensor, exact: Tensor) -> float:
    size = exact.abs().max().clamp_min(1.0)
    return float((found.detach().cpu().double() - exact).abs().max() / size)


def test_the_gate_of_the_benchmark() -> None:
    assert len(gate("cuda")) == 9


def make_layer() -> RelativeAttention:
    torch.manual_seed(0)
    return RelativeAttention(64, 4, encoding="t5", gain=True, max_len=256).cuda()


def test_layers_use_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from everyformer.ops.toeplitz_attention import launch

    calls: list[int] = []
    forward = launch.forward

    def counted(*args: object) -> object:
        calls.append(1)
        return forward(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(launch, "forward", counted)
    layer, x = make_layer(), torch.randn(2, 200, 64, device="cuda")
    fast = layer(x)
    layer.implementation = "reference"
    assert (fast - layer(x)).abs().max() < 1e-4
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    layer, x = make_layer(), torch.randn(2, 200, 64, device="cuda")
    plain = layer(x)
    with torch.autocast("cuda", dtype=dtype):
        out = layer(x)
    assert out.dtype == dtype
    assert (out - plain).abs().max() < 0.05
    out.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_checkpointing_gives_the_same_bits() -> None:
    layer = make_layer()
    x = torch.randn(2, 200, 64, device="cuda")
    found: list[list[Tensor]] = []
    for again in (False, True):
        layer.zero_grad()
        out = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
        assert isinstance(out, Tensor)
        out.square().sum().backward()
        found.append([p.grad.clone() for p in layer.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_compiles_with_inductor() -> None:
    layer, x = make_layer(), torch.randn(2, 200, 64, device="cuda")
    compiled = torch.compile(layer, fullgraph=True)
    results: list[list[Tensor]] = []
    for module in (layer, compiled):
        layer.zero_grad()
        out = module(x)
        out.square().sum().backward()
        gradients = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
        results.append([out.detach(), *gradients])
    for a, b in zip(*results, strict=True):
        assert (a - b).abs().max() <= 1e-3 * max(1.0, float(a.abs().max()))


@pytest.fixture
def process_group() -> Generator[None, None, None]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    dist.init_process_group("nccl", init_method=address, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_distributed_data_parallel() -> None:
    layer = make_layer()
    parallel = DistributedDataParallel(layer, device_ids=[0])
    x = torch.randn(2, 200, 64, device="cuda")
    parallel(x).square().sum().backward()
    found = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    layer.zero_grad()
    layer(x).square().sum().backward()
    wanted = [p.grad for p in layer.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_memory_is_linear_up_to_64k() -> None:
    peaks: list[int] = []
    for n in (8192, 16384, 32768, 65536):
        q, k, v = torch.randn(3, 1, 2, n, 64, device="cuda", dtype=torch.bfloat16)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        bias, gain = (torch.randn(2, 2 * n - 1, device="cuda") for _ in range(2))
        leaves += [bias.requires_grad_(), gain.requires_grad_()]
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = toeplitz_attention(*leaves)
        torch.autograd.grad(out, leaves, torch.ones_like(out))
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        del out, leaves, q, k, v, bias, gain
    assert max(b / a for a, b in itertools.pairwise(peaks)) < 2.2
    assert peaks[-1] < 2**30
