"""Attention with the terms of DeBERTa: chunked, by the kernels (interpreted), refusals."""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from tests.ops.bounds import watched
from tests.ops.cases import TOLERANCE
from tests.ops.disentangled_cases import Case, agreement, drawn, expected, results
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from everyformer.errors import InputError
from everyformer.ops import disentangled_attention
from everyformer.ops.disentangled_attention import chunked
from everyformer.ops.disentangled_attention.operands import Operands

SHAPES = {
    "one token": Case(2, 1, 1, 1, 3),
    "one query": Case(1, 2, 1, 9, 3),
    "one key": Case(1, 2, 9, 1, 3),
    "steps": Case(1, 2, 130, 61, 4),
    "more keys": Case(1, 1, 61, 257, 4),
    "padding": Case(3, 2, 9, 7, 3, padding=True),
    "c2p alone": Case(2, 2, 9, 9, 3, terms="c2p"),
    "p2c alone, padding": Case(2, 2, 8, 9, 3, terms="p2c", padding=True),
    "clipped": Case(1, 2, 40, 33, 3, kind="clipped"),
    "one bucket": Case(1, 1, 5, 6, 2, kind="one"),
    "dropout": Case(2, 3, 130, 9, 3, padding=True, dropout=0.3),
    "all dropped": Case(1, 1, 4, 5, 3, dropout=1.0),
    "scale negative": Case(1, 1, 5, 6, 2, scale=-1.5),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_chunked(name: str, dtype: torch.dtype) -> None:
    x = drawn(SHAPES[name], dtype)
    assert agreement(results(chunked, x), expected(x)) <= TOLERANCE[dtype]


def test_by_definition() -> None:
    """Numbers by hand: two queries, three keys, and the bucket of each offset."""
    c2p = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).log()[None, None]
    p2c = torch.tensor([[1.0, 1.0, 7.0], [1.0, 9.0, 1.0], [1.0, 1.0, 1.0]]).log()[
        None, None
    ]
    q, k, v = (torch.zeros(1, 1, n, 3) for n in (2, 3, 3))
    v[0, 0] = torch.eye(3)
    index = torch.tensor([0, 1, 1, 2])  # of offsets -2, -1, 0, 1
    found = disentangled_attention(q, k, v, c2p, p2c, index, scale=1.0)[0, 0]
    # Query 0 meets offsets 0, -1, -2; query 1 meets 1, 0, -1.
    rows = torch.tensor([[2.0 * 1, 2.0 * 9, 1.0 * 1], [6.0 * 7, 5.0 * 9, 5.0 * 1]])
    assert (found - rows / rows.sum(-1, keepdim=True)).abs().max() < 1e-6


INTERPRETED = {
    "far and near": Case(1, 1, 50, 34, 16),
    "clipped, more queries": Case(1, 1, 40, 17, 16, kind="clipped"),
    "wide buckets, more keys": Case(1, 1, 10, 60, 16, kind="wide"),
    "padding, odd size": Case(2, 1, 7, 17, 24, padding=True),
    "one bucket": Case(1, 1, 17, 33, 16, kind="one"),
    "one token": Case(1, 1, 1, 1, 16),
    "c2p alone, dropout": Case(1, 1, 9, 18, 16, terms="c2p", dropout=0.3),
    "p2c alone, dropout": Case(1, 2, 18, 9, 16, terms="p2c", dropout=0.3),
}


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kernels with small tiles, so that few tokens have near and far ones."""
    pytest.importorskip("triton")
    launch = import_module("everyformer.ops.disentangled_attention.launch")
    small = launch.Tiles(16, 16, 4, 2)
    monkeypatch.setattr(launch, "FULL", launch.Tuning(small, small, small))
    return launch


@pytest.mark.rows(4)
@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU")
@pytest.mark.parametrize("name", INTERPRETED)
def test_kernels(launch: Any, name: str) -> None:
    x = drawn(INTERPRETED[name], torch.float32)
    found = results(launch, x)
    found["lse"] = found["lse"] * math.log(2)
    assert agreement(found, expected(x)) <= TOLERANCE[torch.float32]


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU")
@pytest.mark.parametrize("name", ["far and near", "wide buckets, more keys", "one bucket"])
@pytest.mark.parametrize("known", [True, False])
def test_the_band_is_filled_again(
    launch: Any, monkeypatch: pytest.MonkeyPatch, name: str, known: bool
) -> None:
    """Two programs at once, and a band as wide as the sequence where it is not known.

    Nothing is read from memory that nobody has written.
    """
    monkeypatch.setattr(launch, "BAND_BYTES", 1)
    monkeypatch.setattr(launch, "FEWEST_PROGRAMS", 2)
    monkeypatch.setattr(launch, "_TABLES", launch.Recalled())
    table = launch._table

    def unknown(x: Operands) -> Any:
        return table(x)._replace(near=None)

    if not known:
        monkeypatch.setattr(launch, "_table", unknown)
    x = drawn(INTERPRETED[name], torch.float32)
    with watched(monkeypatch, launch) as outside:
        found = results(launch, x)
    found["lse"] = found["lse"] * math.log(2)
    assert agreement(found, expected(x)) <= TOLERANCE[torch.float32]
    assert outside == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is assembled there")
@pytest.mark.parametrize(
    ("case", "kinds"),
    [
        (Case(1, 1, 64, 32, 16, padding=True), {"v2.f32", "f32", "b32", "u8"}),
        (Case(1, 2, 21, 30, 16, kind="clipped"), {"f32", "b32"}),
    ],
    ids=["even, padding", "odd"],
)
@pytest.mark.parametrize("terms", [torch.float32, torch.float16])
def test_assembly_reads_the_same_numbers(
    launch: Any,
    monkeypatch: pytest.MonkeyPatch,
    case: Case,
    kinds: set[str],
    terms: torch.dtype,
) -> None:
    """Of addresses taken apart, whose parts the compiler adds: equal bits, all aligned."""
    assembly = import_module("tests.ops.assembly")  # it imports Triton
    monkeypatch.setattr(launch, "LARGEST_TILE", 32)
    x = drawn(case, torch.float32)
    assert x.c2p is not None
    assert x.p2c is not None
    x = x._replace(c2p=x.c2p.to(terms), p2c=x.p2c.to(terms))
    wanted = results(launch, x)
    seen = assembly.interpreted(monkeypatch)
    monkeypatch.setattr(launch, "launch", assembly.with_assembly(launch.launch))
    with watched(monkeypatch, launch) as outside:
        found = results(launch, x)
    half = {"b16" if name == "f32" else name for name in kinds}
    assert set(seen) == (kinds if terms == torch.float32 else half)
    assert outside == []
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU")
def test_an_index_that_decreases_reaches_nothing_else(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled code does not look whether it does; its gradients are wrong then."""
    x = drawn(INTERPRETED["clipped, more queries"], torch.float32)
    order = torch.randperm(len(x.index), generator=torch.Generator().manual_seed(5))
    with watched(monkeypatch, launch) as outside:
        results(launch, x._replace(index=x.index[order]))
    assert outside == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU")
def test_kernels_twice_and_with_a_shifted_index(launch: Any) -> None:
    """Equal bits; and, as a negative control, what another bucket would give."""
    x = drawn(Case(1, 1, 9, 9, 16), torch.float32)
    first, second = results(launch, x), results(launch, x)
    assert all(torch.equal(first[name], second[name]) for name in first)
    moved = x._replace(index=(x.index + 1).clamp(max=x.buckets - 1))
    far = results(launch, moved)
    for name in ("out", "dq", "dk", "dv", "dc2p", "dp2c"):
        assert (far[name] - first[name]).abs().max() > 1e-2, name


class Largest(TorchDispatchMode):
    """The number of entries of the largest tensor that is made."""

    entries = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for x in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(x, Tensor):
                self.entries = max(self.entries, x.untyped_storage().nbytes() // 4)
        return found


def test_nothing_of_size_n_squared_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward: the inputs, or a chunk of queries with all keys."""
    monkeypatch.setattr(chunked, "CHUNK", 16)
    monkeypatch.setattr(chunked, "STEP_ENTRIES", 1)
    n, buckets, d = 400, 12, 4
    tensors = [torch.randn(1, 2, n, size) for size in (d, d, d, buckets, buckets)]
    q, k, v, c2p, p2c = leaves = [x.requires_grad_() for x in tensors]
    index = (torch.arange(2 * n - 1) - n + 7).clamp(0, buckets - 1)
    with Largest() as seen:
        out = disentangled_attention(q, k, v, c2p, p2c, index)
        torch.autograd.grad(out.sum(), leaves)
    linear = max(2 * n * buckets, 2 * 16 * n)  # buckets of int64 count twice
    assert 2 * n * d < seen.entries <= linear
    assert linear < n * n / 10


def tensors() -> dict[str, Any]:
    torch.manual_seed(0)
    shapes = {"q": (7, 4), "k": (9, 4), "v": (9, 4), "c2p": (7, 5), "p2c": (9, 5)}
    found: dict[str, Any] = {
        name: torch.randn(2, 3, *shape, requires_grad=True)
        for name, shape in shapes.items()
    }
    return found | {"index": torch.arange(15) // 3}


def test_checkpointing_autocast_and_the_scale() -> None:
    x = tensors()
    plain = disentangled_attention(**x)
    again = checkpoint(disentangled_attention, *x.values(), use_reentrant=False)
    assert isinstance(again, Tensor)
    assert torch.equal(plain, again)
    leaves = [y for y in x.values() if y.requires_grad]
    one, two = (torch.autograd.grad(out.sum(), leaves) for out in (plain, again))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = disentangled_attention(**x)
        inside = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    assert out.dtype == torch.bfloat16
    assert (out - plain).abs().max() < 0.02
    outside = torch.autograd.grad(out.sum(), leaves)
    assert all(torch.equal(a, b) for a, b in zip(inside, outside, strict=True))
    assert torch.equal(plain, disentangled_attention(**x, scale=1 / math.sqrt(12)))


WRONG: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "q, k, v have shapes": lambda x: {"q": x["q"][0]},
    "differ in batch, heads or size": lambda x: {"q": x["q"][..., :3]},
    "c2p has shape": lambda x: {"c2p": x["p2c"]},
    "p2c has dtype torch.int64": lambda x: {"p2c": x["p2c"].long()},
    "c2p has 5 buckets, p2c 4": lambda x: {"p2c": x["p2c"][..., :4]},
    "c2p and p2c are both None": lambda x: {"c2p": None, "p2c": None},
    r"index has shape \(14,\)": lambda x: {"index": x["index"][1:]},
    "index has dtype torch.float32": lambda x: {"index": x["index"].float()},
    "index decreases 1 times": lambda x: {"index": x["index"].roll(1)},
    "index runs from 0 to 5": lambda x: {"index": torch.arange(15).clamp(max=5)},
    "index runs from -1 to 3": lambda x: {"index": x["index"] - 1},
    "key_padding has shape": lambda x: {"key_padding": torch.zeros(2, 7) > 0},
    "give one kind": lambda x: {"v": x["v"].double()},
    "is empty": lambda x: {"q": x["q"][:, :, :0], "c2p": x["c2p"][:, :, :0]},
    "dropout is 1.5; give": lambda x: {"dropout": 1.5},
    "seed has shape": lambda x: {"dropout": 0.5, "seed": torch.zeros(2).long()},
    "use one": lambda x: {"index": x["index"].to("meta")},
}


@pytest.mark.parametrize("text", WRONG)
def test_refusals(text: str) -> None:
    given = tensors()
    with pytest.raises(InputError, match=text):
        disentangled_attention(**given | WRONG[text](given))


def test_more_pairs_than_a_launch_takes_are_refused() -> None:
    """On a GPU, which need not be there."""
    with FakeTensorMode():
        q, c2p = (torch.empty(32768, 2, 1, size, device="cuda") for size in (16, 3))
        index = torch.zeros(1, dtype=torch.int64, device="cuda")
        with pytest.raises(InputError, match="32768 sequences of 2 heads exceed 65535"):
            disentangled_attention(q, q, q, c2p, None, index)


def test_a_seed_is_drawn_and_decides() -> None:
    x = tensors()
    torch.manual_seed(3)
    one, two = (disentangled_attention(**x, dropout=0.5) for _ in range(2))
    torch.manual_seed(3)
    again = disentangled_attention(**x, dropout=0.5)
    assert torch.equal(one, again)
    assert not torch.equal(one, two)
    rows = torch.stack([disentangled_attention(**x, dropout=0.2) for _ in range(400)]).mean(
        0
    )
    assert (rows - disentangled_attention(**x)).abs().max() < 0.3


def test_inference_mode() -> None:
    """An index made there is read each time: it does not tell that it was changed."""
    x = tensors()
    wanted = disentangled_attention(**x)
    with torch.inference_mode():
        x["index"] = torch.arange(15) // 3
        assert torch.equal(disentangled_attention(**x), wanted)
        x["index"][0] = 3
        with pytest.raises(InputError, match="index decreases"):
            disentangled_attention(**x)


def test_an_index_that_changes_is_looked_at_again() -> None:
    x = tensors()
    disentangled_attention(**x)
    x["index"][0] = 3
    with pytest.raises(InputError, match="index decreases"):
        disentangled_attention(**x)
