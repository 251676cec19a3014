"""On a GPU: every dtype against eager, and all that PyTorch does with an operator."""

import gc
import itertools
import math
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
from everyformer.bench.timing import gpu_bytes
from everyformer.errors import InputError
from everyformer.layers import RelativeAttention
from everyformer.ops import toeplitz_attention
from everyformer.ops.dropping import kept
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
MODES = [
    Case(batch=1, heads=2, n_q=200, n_k=333, d=256, causal=True, padding="some"),
    Case(batch=1, heads=2, n_q=130, n_k=130, d=200, bias="none", gain="none"),
    Case(batch=2, heads=4, n_q=1, n_k=300, d=64, causal=True, offset=299, group=4),
    Case(batch=2, heads=2, n_q=100, n_k=333, d=64, causal=True, offset=233),
    Case(batch=2, heads=2, n_q=300, n_k=200, d=64, causal=True, offset=-150),
    Case(batch=2, heads=4, n_q=256, n_k=256, d=64, causal=True, offset=128, group=2),
    Case(batch=2, heads=6, n_q=257, n_k=257, d=128, group=3, bias="shared"),
    Case(2, 4, 200, 140, 64, group=2, mask="bool"),
    Case(2, 4, 200, 140, 128, group=2, mask="added"),
    Case(2, 4, 200, 140, 256, group=2, mask="added", causal=True),
    Case(2, 4, 200, 140, 64, group=2, mask="keys", causal=True),
    Case(2, 4, 200, 140, 32, group=2, mask="rows"),
    Case(2, 4, 200, 140, 64, group=2, mask="heads"),
    Case(2, 4, 200, 140, 64, group=2, mask="column"),
    Case(2, 4, 200, 140, 64, group=2, mask="lowest", causal=True),
    Case(batch=1, heads=2, n_q=1000, n_k=1000, d=64, sequences=(3, 500, 0, 130, 367)),
    Case(
        batch=1, heads=4, n_q=384, n_k=384, d=128, sequences=(128, 256), causal=True,
        group=2, mask="bool", dropout=0.2,
    ),
    Case(batch=2, heads=2, n_q=256, n_k=256, d=64, dropout=0.1),
    Case(batch=2, heads=2, n_q=200, n_k=333, d=256, dropout=0.5, padding="all"),
    Case(
        batch=2, heads=4, n_q=100, n_k=333, d=64, causal=True, offset=233, group=2,
        mask="lowest", dropout=0.3, padding="some", gain="none",
    ),
]  # fmt: skip


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
    offset: int,
    attn_mask: Tensor | None,
    sequences: Tensor | None,
    dropout: float,
    seed: Tensor | None,
) -> Tensor:
    """As one writes it in PyTorch, every product in the dtype of q."""
    n_q, n_k = q.shape[2], k.shape[2]
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + toeplitz(bias.to(q.dtype), n_q, n_k)
    hidden = torch.zeros(1, 1, n_q, n_k, dtype=torch.bool, device=q.device)
    if causal:
        hidden = hidden | torch.ones_like(hidden).triu(1 + offset)
    if key_padding is not None:
        hidden = hidden | key_padding[:, None, None, :]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        hidden = hidden | ~attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask.to(q.dtype)
        hidden = hidden | (attn_mask <= -1e30)
    if sequences is not None:
        lengths = sequences.diff()
        number = torch.arange(len(lengths), device=q.device).repeat_interleave(lengths)
        hidden = hidden | (number[:, None] != number)
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    weights = weights.masked_fill(hidden.all(dim=-1, keepdim=True), 0.0)
    if gain is not None:
        weights = weights * toeplitz(gain.to(q.dtype), n_q, n_k)
    if seed is not None:
        b, h, i, j = (torch.arange(n, device=q.device) for n in weights.shape)
        places = b[:, None, None, None], h[:, None, None], i[:, None], j
        weights = weights * kept(seed, *places, dropout, q.dtype)
    return weights @ v


IN_FULL = [
    case
    for case in MODES
    if case.d == 256 or case.dropout or case.mask in ("bool", "heads")
]


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *itertools.product(CASES, HALF),
        *((case, torch.bfloat16) for case in MODES),
        *((case, torch.float32) for case in IN_FULL),
    ],
    ids=str,
)
def test_error_is_at_most_twice_that_of_eager(case: Case, dtype: torch.dtype) -> None:
    """Or half of the tolerance, where eager is close to exact."""
    given = inputs(case, dtype).to(dtype, torch.float32)
    wanted = expected(given)
    errors: list[dict[str, float]] = []
    for function in (toeplitz_attention, eager):
        tensors = (given.q, given.k, given.v, given.bias, given.gain)
        leaves: list[Any] = [
            None if t is None else t.cuda().requires_grad_() for t in tensors
        ]
        out = function(*leaves, **given.options("cuda"))
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


@pytest.mark.parametrize(
    ("shape", "dtype", "text"),
    [
        ((1, 1, 2, 257), torch.float32, "heads of size 257 exceed 256"),
        ((1, 1, 2, 16), torch.float64, "float64 runs on the CPU only"),
        ((32768, 2, 1, 16), torch.float16, "exceed 65535 pairs"),
    ],
)
def test_refusals(shape: tuple[int, ...], dtype: torch.dtype, text: str) -> None:
    q = torch.zeros(shape, dtype=dtype, device="cuda")
    with pytest.raises(InputError, match=text):
        toeplitz_attention(q, q, q)


def test_nan_in_a_bias_is_not_hidden() -> None:
    """It reaches the queries that see it, and nobody else."""
    q, k, v = torch.randn(3, 1, 2, 200, 64, device="cuda").unbind()
    bias = torch.zeros(2, 399, device="cuda")
    bias[0, 199 - 100] = torch.nan  # query i sees key i + 100
    out = toeplitz_attention(q, k, v, bias)
    assert out[:, 0, :100].isnan().all()
    assert out[:, 0, 100:].isfinite().all()
    assert out[:, 1].isfinite().all()
    bias.requires_grad_()
    out = toeplitz_attention(q, k, v, bias, causal=True)
    assert out.isfinite().all()
    assert torch.autograd.grad(out.sum(), bias)[0].isfinite().all()


def test_a_cache_gives_the_same_tokens() -> None:
    q, k, v = torch.randn(3, 2, 4, 70, 64, device="cuda", dtype=torch.bfloat16).unbind()
    k, v = k[:, :2], v[:, :2]
    bias = torch.randn(4, 139, device="cuda")
    whole = toeplitz_attention(q, k, v, bias, causal=True)
    for i in range(70):
        now = q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1]
        one = toeplitz_attention(*now, bias[:, 69 : 70 + i], causal=True, offset=i)
        assert (one - whole[:, :, i : i + 1]).abs().max() < 2e-2


@pytest.mark.parametrize("mode", ["dropout", "masks", "packed"])
def test_inductor_compiles_modes(mode: str) -> None:
    torch.compiler.reset()
    q = torch.randn(1, 4, 130, 64, device="cuda", requires_grad=True)
    kv = torch.randn(2, 1, 2, 130, 64, device="cuda", requires_grad=True)
    options: dict[str, Any] = {
        "dropout": {"dropout": 0.3, "seed": torch.tensor([7], device="cuda")},
        "masks": {"attn_mask": torch.rand(130, 130, device="cuda") < 0.5, "offset": 3},
        "packed": {"sequences": torch.tensor([0, 50, 130], device="cuda")},
    }[mode]

    def model(q: Tensor, kv: Tensor) -> Tensor:
        return toeplitz_attention(q.sin(), *kv.unbind(), causal=mode == "masks", **options)

    pair: list[list[Tensor]] = []
    for function in (model, torch.compile(model, fullgraph=True)):
        out = function(q, kv)
        slopes = torch.autograd.grad(out.square().sum(), (q, kv))
        pair.append([out.detach(), *slopes])
    for a, b in zip(*pair, strict=True):
        assert (a - b).abs().max() <= 1e-4 * max(1.0, float(b.abs().max()))


def test_packing_skips_tiles() -> None:
    """Tiles of another sequence are not even read: what is no number there stays there."""
    n, size = 4096, 512
    q, k, v = torch.randn(3, 1, 4, n, 64, device="cuda", dtype=torch.bfloat16).unbind()
    begins = torch.arange(0, n + 1, size, device="cuda", dtype=torch.int32)
    wanted = toeplitz_attention(q, k, v, sequences=begins)
    for poisoned in (k, v):
        poisoned[:, :, size : 2 * size] = math.nan
    found = toeplitz_attention(q, k, v, sequences=begins)
    clean = torch.arange(n, device="cuda") // size != 1
    assert torch.equal(found[:, :, clean], wanted[:, :, clean])
    assert found[:, :, ~clean].isnan().all()


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
    gc.collect()  # what other tests left would be given back in between
    peaks: list[int] = []
    for n in (8192, 16384, 32768, 65536):
        q, k, v = torch.randn(3, 1, 2, n, 64, device="cuda", dtype=torch.bfloat16)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        bias, gain = (torch.randn(2, 2 * n - 1, device="cuda") for _ in range(2))
        leaves += [bias.requires_grad_(), gain.requires_grad_()]

        def both(leaves: list[Tensor] = leaves) -> object:
            out = toeplitz_attention(*leaves)
            return torch.autograd.grad(out, leaves, torch.ones_like(out))

        peaks.append(gpu_bytes(both))  # of the second call: all else has settled then
    assert max(b / a for a, b in itertools.pairwise(peaks)) < 2.2
    assert peaks[-1] < 2**30
