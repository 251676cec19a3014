"""The Triton kernels against the float64 specification; interpreted without a GPU."""

import math
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from tests.ops.bounds import watched
from tests.ops.cases import (
    Case,
    Inputs,
    Results,
    assert_agrees,
    cases,
    expected,
    inputs,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from everyformer.ops.dropping import kept
from everyformer.ops.launching import Tiles
from everyformer.ops.toeplitz_attention import chunked
from everyformer.ops.toeplitz_attention.operands import Incoming, Operands
from everyformer.ops.toeplitz_attention.reference import attend
from everyformer.ops.toeplitz_attention.tuning import FULL, Tuning

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRITON = pytest.importorskip("triton")


@pytest.fixture(scope="module")
def launch() -> Any:
    """The launcher; it imports Triton."""
    return import_module("everyformer.ops.toeplitz_attention.launch")


class Noted:
    """A prepared launch that notes what it is and launches nothing."""

    seen: ClassVar[list[Any]] = []

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], *numbers: float, **options: Any
    ) -> None:
        self.name, self.fixed = kernel.__name__, (grid, numbers, options)
        self.kinds: list[torch.dtype] = []

    def __call__(self, *tensors: Tensor) -> None:
        kinds = [x.dtype for x in tensors]
        assert self.kinds in ([], kinds), "its binary is that of other dtypes"
        self.kinds = kinds
        self.seen.append((self.name, *self.fixed, kinds))


def forget(launch: Any) -> None:
    for passes in (launch._table, launch._attend, launch._gradients):
        passes.cache_clear()


@pytest.fixture
def noted(launch: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What is launched instead of being run."""
    forget(launch)
    Noted.seen.clear()
    monkeypatch.setattr(launch, "Prepared", Noted)
    yield Noted.seen
    forget(launch)


CASES = {
    "square": Case(1, 2, 70, 70, 16),
    "one token": Case(2, 1, 1, 1, 16),
    "whole tiles": Case(1, 1, 128, 128, 16),
    "causal": Case(2, 1, 65, 65, 16, causal=True),
    "causal, more keys": Case(1, 1, 40, 100, 16, causal=True),
    "causal, more queries": Case(1, 1, 100, 33, 16, causal=True),
    "padding": Case(2, 1, 50, 70, 16, padding="all"),
    "odd size": Case(1, 2, 33, 40, 24),
    "bias alone": Case(1, 2, 40, 40, 16, gain="none"),
    "gain alone": Case(1, 2, 40, 40, 16, bias="none"),
    "neither": Case(1, 2, 40, 40, 16, bias="none", gain="none"),
    "shared by heads": Case(2, 2, 40, 40, 16, gain="shared"),
    "gain zero": Case(1, 1, 40, 40, 16, gain="zero"),
    "large bias": Case(1, 1, 40, 40, 16, bias="large"),
    "one query, cache, group": Case(
        1, 2, 1, 40, 16, causal=True, offset=39, group=2, mask="keys"
    ),
    "large heads": Case(1, 1, 20, 33, 200, causal=True, offset=13),
    "cache": Case(1, 1, 20, 75, 16, causal=True, offset=55),
    "offset below": Case(1, 1, 70, 20, 16, causal=True, offset=-40, gain="none"),
    "nothing seen": Case(1, 1, 33, 20, 16, causal=True, offset=-(2**40)),
    "group": Case(2, 2, 20, 33, 16, group=2, padding="some", bias="shared"),
    "mask": Case(2, 1, 33, 20, 16, mask="bool"),
    "mask of heads": Case(1, 2, 20, 33, 16, mask="heads", group=2, bias="none"),
    "lowest mask": Case(1, 1, 33, 20, 16, mask="lowest", gain="none", padding="some"),
    "packed": Case(1, 1, 100, 100, 16, sequences=(20, 1, 0, 60, 19)),
    "packed, causal, group": Case(
        1, 2, 40, 40, 16, sequences=(25, 15), causal=True, group=2, mask="added"
    ),
    "dropout": Case(2, 1, 20, 33, 16, dropout=0.3),
    "dropout, all": Case(
        1, 2, 20, 40, 16, dropout=0.5, causal=True, offset=20, group=2, mask="bool",
        gain="none", seed=9,
    ),
}  # fmt: skip


def drawn(name: str) -> Inputs:
    return inputs(replace(CASES[name], scale=0.3), torch.float32)


def results(launch: Any, x: Inputs) -> Results:
    """Those of the kernels."""
    given = Operands._make(y.to(DEVICE) if isinstance(y, Tensor) else y for y in x.operands)
    needs = x.bias is not None, x.gain is not None
    with torch.no_grad():
        out, lse, table = launch.forward(given)
        incoming = Incoming(x.grad_out.to(DEVICE), out, lse, table, *needs)
        gradients = launch.backward(given, incoming)
    found = {"out": out, "lse": lse * math.log(2)}
    found |= dict(zip(("dq", "dk", "dv", "dbias", "dgain"), gradients, strict=True))
    return {name: tensor.cpu() for name, tensor in found.items() if tensor is not None}


@pytest.mark.rows(12)
@pytest.mark.parametrize("name", CASES)
def test_output_and_gradients(launch: Any, name: str) -> None:
    x = drawn(name)
    assert_agrees(results(launch, x), expected(x), torch.float32)


@pytest.mark.parametrize(
    "name",
    [
        "square", "causal, more queries", "group", "gain zero", "cache", "lowest mask",
        "padding", "nothing seen", "neither",
    ],
)  # fmt: skip
def test_half_precision(launch: Any, name: str) -> None:
    """Where dS is added up as C sum P G - sum P Delta, and products begin with -LSE."""
    x = inputs(replace(CASES[name], scale=0.3), torch.float16)
    assert_agrees(results(launch, x), expected(x), torch.float16)


@pytest.mark.parametrize(
    "case",
    [
        Case(3, 2, 70, 40, 16),
        Case(3, 2, 40, 70, 16, causal=True, offset=30, group=2, padding="some"),
        Case(2, 1, 64, 64, 16, gain="none", mask="rows", dropout=0.3),
    ],
    ids=["tiles", "causal, group, padding", "mask, dropout"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_diagonal_goes_through_all_sequences(
    launch: Any, monkeypatch: pytest.MonkeyPatch, case: Case, dtype: torch.dtype
) -> None:
    """One program for all of them, as where there are many: others have one each here."""
    monkeypatch.setattr(launch, "ENOUGH_PROGRAMS", 1)
    forget(launch)
    x = inputs(replace(case, scale=0.3), dtype)
    swapped = x.grad_out.transpose(0, 1).contiguous().transpose(0, 1)
    found = results(launch, replace(x, grad_out=swapped))
    forget(launch)
    assert_agrees(found, expected(x), dtype)


@pytest.mark.parametrize(
    "case",
    [
        Case(1, 1, 70, 100, 16),
        Case(1, 1, 100, 70, 16, causal=True),
        Case(2, 1, 40, 100, 16, causal=True, offset=50, bias="shared"),
        Case(1, 1, 100, 40, 16, causal=True, offset=-45, gain="none"),
        Case(1, 1, 100, 100, 16, sequences=(20, 1, 0, 60, 19)),
        Case(1, 2, 128, 128, 16, group=2),
    ],
    ids=["more keys", "more queries", "cache", "offset below", "packed", "whole tiles"],
)
@pytest.mark.parametrize("rows", [2, 4])
def test_diagonals_of_tall_tiles(
    launch: Any, monkeypatch: pytest.MonkeyPatch, case: Case, rows: int
) -> None:
    """Tiles with more queries than keys have several strips of offsets on either side."""
    tall = Tiles(16 * rows, 16, 4, 2)
    monkeypatch.setitem(FULL, 128, replace(FULL[128], diagonal=tall))
    forget(launch)
    x = inputs(replace(case, scale=0.3), torch.float32)
    found = results(launch, x)
    forget(launch)
    wanted = expected(x)
    assert_agrees(found, wanted, torch.float32)
    wanted["dbias"] = wanted["dbias"].roll(1, dims=-1)  # as if a strip were misplaced
    with pytest.raises(AssertionError, match="dbias is off"):
        assert_agrees(found, wanted, torch.float32)


@pytest.mark.skipif(DEVICE == "cuda", reason="the interpreter tells")
@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize(
    "case",
    [
        Case(2, 1, 47, 47, 16),
        Case(1, 1, 128, 256, 16),
        Case(1, 1, 40, 70, 16, causal=True, offset=30, padding="some", gain="none"),
        Case(1, 1, 33, 20, 16, causal=True, offset=-33, mask="added", bias="shared"),
    ],
    ids=["last tile", "diagonals without tiles", "causal", "nothing seen"],
)
def test_nothing_else_is_reached(
    launch: Any, monkeypatch: pytest.MonkeyPatch, case: Case, several: bool
) -> None:
    """LSE and Delta are read ahead of the tile that needs them, which may be none."""
    monkeypatch.setattr(launch, "ENOUGH_PROGRAMS", 1 if several else 1024)
    monkeypatch.setitem(FULL, 128, replace(FULL[128], diagonal=Tiles(32, 16, 4, 2)))
    forget(launch)
    x = inputs(replace(case, scale=0.3), torch.float32)
    with watched(monkeypatch, launch) as outside:
        found = results(launch, x)
    forget(launch)
    assert outside == []
    assert_agrees(found, expected(x), torch.float32)
    with watched(monkeypatch, launch, short) as outside:  # as a control
        results(launch, x)
    forget(launch)
    assert any("load of" in told for told in outside)


@pytest.mark.skipif(DEVICE == "cuda", reason="it is assembled there")
@pytest.mark.parametrize(
    ("case", "kinds"),
    [
        (Case(2, 2, 64, 32, 16, group=2, padding="some"), {"v2.f32", "u8"}),
        (Case(1, 1, 32, 64, 16, causal=True, offset=20, gain="none"), {"v2.f32"}),
        (Case(1, 1, 21, 30, 16, bias="shared", dropout=0.3), {"v2.f32"}),
    ],
    ids=["even, padding", "even, causal", "odd"],
)
def test_assembly_reads_the_same_numbers(
    launch: Any, monkeypatch: pytest.MonkeyPatch, case: Case, kinds: set[str]
) -> None:
    """Of addresses taken apart, whose parts the compiler adds: equal bits, all aligned."""
    assembly = import_module("tests.ops.assembly")  # it imports Triton
    problem = import_module("everyformer.ops.toeplitz_attention.problem")
    monkeypatch.setattr(problem, "LARGEST_TILE", 32)
    small = Tiles(16, 32, 4, 2)
    tall = Tiles(32, 16, 4, 2)
    monkeypatch.setitem(FULL, 128, Tuning(small, small, small, tall))
    forget(launch)
    x = inputs(replace(case, scale=0.3), torch.float32)
    wanted = results(launch, x)
    forget(launch)
    seen = assembly.interpreted(monkeypatch)
    monkeypatch.setattr(launch, "Prepared", assembly.with_assembly(launch.Prepared))
    with watched(monkeypatch, launch) as outside:
        found = results(launch, x)
    forget(launch)
    assert set(seen) == kinds
    assert outside == []
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def short(x: Tensor) -> Tensor:
    """Memory that lacks LSE and Delta of the last two queries."""
    return x.zero_()[..., :-2, :] if x.dim() == 4 and x.shape[-1] == 2 else x.zero_()


def test_a_shifted_table_is_noticed(launch: Any) -> None:
    x = drawn("square")
    assert x.gain is not None
    shifted = replace(x, gain=x.gain.roll(1, dims=-1))
    with pytest.raises(AssertionError, match=r"out is off .* dq is off .* dbias is off"):
        assert_agrees(results(launch, shifted), expected(x), torch.float32)


def test_two_runs_are_bit_identical(launch: Any) -> None:
    x = drawn("padding")
    first, second = results(launch, x), results(launch, x)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_numbers_of_launches(launch: Any, noted: list[Any]) -> None:
    """A table for the vectors, three passes, one sum; nothing of torch but memory."""
    with_vectors = ["table", "forward", "dq", "dkv", "diagonal", "fold"]
    for name, kernels in (
        ("padding", with_vectors),
        ("neither", ["forward", "dq", "dkv"]),
        ("mask", with_vectors),
        ("group", with_vectors),
    ):
        x = drawn(name)
        noted.clear()
        with Operations() as seen:
            results(launch, x)
        assert [kernel for kernel, *_ in noted] == [
            f"{kernel}_kernel" for kernel in kernels
        ]
        harmless = {"empty", "empty_like", "new_empty", "view", "detach", "alias"}
        of_this_test = {"_to_copy", "mul"}  # the LSE
        assert seen.names <= {f"aten.{op}" for op in harmless | of_this_test}, name


def layouts(x: Inputs) -> Iterator[Inputs]:
    """The same operands, laid out in other ways or of other kinds."""
    yield x
    yield replace(x, q=x.q.transpose(1, 2).contiguous().transpose(1, 2))
    yield replace(x, grad_out=x.grad_out.transpose(1, 2).contiguous().transpose(1, 2))
    if x.bias is not None:
        yield replace(x, bias=x.bias.mT.contiguous().mT)
        yield replace(x, bias=x.bias.double())
    if x.gain is not None:
        yield replace(x, gain=x.gain[:1])


def test_what_is_prepared_depends_on_nothing_but_its_key(
    launch: Any, noted: list[Any]
) -> None:
    """Launches of one problem after all others, and alone, have the same arguments."""
    every = [y for name in list(CASES)[::3] for y in layouts(drawn(name))]
    for x in every:
        results(launch, x)
    after_others = list(noted)
    noted.clear()
    for x in every:
        forget(launch)
        results(launch, x)
    assert noted == after_others
    assert len({repr(found) for found in noted}) > 2 * len(every)


class Operations(TorchDispatchMode):
    """Notes what torch does."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.add(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


def test_all_paths_drop_the_same_weights(launch: Any) -> None:
    """Bit by bit: v = 1 for one key after the other, and equal weights, show them."""
    n_q, n_k, p = 37, 33, 0.3
    seed = torch.tensor([-(2**62) + 12345])
    q, k = torch.zeros(2, 1, n_q, 40), torch.zeros(2, 1, n_k, 40)
    v = torch.eye(n_k, 40).expand_as(k)
    x = Operands(q, k, v, seed=seed, dropout=p)
    there = Operands._make(y.to(DEVICE) if isinstance(y, Tensor) else y for y in x)
    outs = [launch.forward(there)[0].cpu(), chunked.forward(x)[0], attend(x)]
    b, h, i, j = (torch.arange(n) for n in (2, 1, n_q, n_k))
    places = b[:, None, None, None], h[:, None, None], i[:, None], j
    bits = kept(seed, *places, p, torch.float32)
    assert bits.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]
    assert (
        abs(float((bits == 0).float().mean()) - p) < 4 * (p * (1 - p) / bits.numel()) ** 0.5
    )
    for out in outs:
        assert torch.equal(out[..., :n_k] != 0, bits != 0)
        assert (out[..., :n_k] * n_k - bits).abs().max() < 1e-6
    other = attend(x._replace(seed=seed + 1))
    assert not torch.equal(other != 0, outs[0] != 0)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_a_sequence_does_not_read_the_others(launch: Any) -> None:
    """Tiles without a common sequence are skipped: NaN in the other reaches nobody."""
    x = inputs(Case(1, 1, 96, 96, 16, sequences=(64, 32), scale=0.3), torch.float32)
    wanted = expected(x)
    given = {name: getattr(x, name).clone() for name in ("q", "k", "v", "grad_out")}
    for y in given.values():
        y[:, :, 64:] = math.nan
    found = results(launch, replace(x, **given))
    for name in ("out", "dq", "dk", "dv"):
        error = (found[name] - wanted[name])[:, :, :64].abs().max()
        assert error < 1e-4, name
        assert found[name][:, :, 64:].isnan().all()


def test_frozen_vectors_do_not_launch_the_third_kernel(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(launch)
    x = drawn("square")
    given = Operands._make(y.to(DEVICE) if isinstance(y, Tensor) else y for y in x.operands)
    monkeypatch.setattr(launch.kernels, "diagonal_kernel", None)
    with torch.no_grad():
        out, lse, table = launch.forward(given)
        frozen = Incoming(x.grad_out.to(DEVICE), out, lse, table[:0], False, False)
        *_, dbias, dgain = launch.backward(given, frozen)
        assert dbias is None
        assert dgain is None
        with pytest.raises(AttributeError, match="NoneType"):
            launch.backward(given, frozen._replace(needs_bias=True))


def test_strides_are_respected(launch: Any) -> None:
    """Heads and tokens exchanged, as in (b, n, h, d) tensors: no copy is needed."""
    x = drawn("square")
    some = {"q": x.q, "v": x.v, "grad_out": x.grad_out}
    changed: dict[str, Any] = {
        name: y.transpose(1, 2).contiguous().transpose(1, 2) for name, y in some.items()
    }
    assert not any(y.is_contiguous() for y in changed.values())
    found = results(launch, replace(x, **changed))
    assert_agrees(found, expected(x), torch.float32)


@given(cases(longest=18))
@settings(max_examples=5, deadline=None)
def test_any_shape(case: Case) -> None:
    """Random lengths, head sizes and options; every gradient. One head: interpreted."""
    case = replace(case, batch=1, heads=case.group)
    if case.bias == "steep":  # float32 rounds logits of 1e5 by more than the tolerance
        case = replace(case, bias="normal")
    launched = import_module("everyformer.ops.toeplitz_attention.launch")
    x = inputs(case, torch.float32)
    assert_agrees(results(launched, x), expected(x), torch.float32)
