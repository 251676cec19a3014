"""Attention with a bias and a gain for each pair: kernels, the CPU's path, refusals."""

import itertools
import math
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, ClassVar

import pytest
import torch
from tests.contracts.operator import (
    EXACT,
    OperatorContract,
    as_laid_out,
    laid_out,
    normal,
)
from tests.ops.cases import Results, assert_agrees
from tests.ops.operators import Operator, gap
from tests.ops.pairwise_cases import NAMES, Pairs, expected, operator, results
from tests.ops.references import pairwise_attention_reference
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from everyformer.errors import InputError
from everyformer.ops import pairwise_attention, toeplitz_attention
from everyformer.ops.pairwise_attention import chunked, library
from everyformer.ops.pairwise_attention.operands import Incoming, Operands
from everyformer.ops.pairwise_attention.sharing import ENOUGH_WARPS, Split
from everyformer.ops.toeplitz_attention.reference import toeplitz

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def launch() -> Any:
    """The launcher; it imports Triton."""
    pytest.importorskip("triton")
    return import_module("everyformer.ops.pairwise_attention.launch")


AXES = ["".join(axes) for k in range(4) for axes in itertools.combinations("bhq", k)]
"""Every way of sharing, from "" (one row for all) to "bhq" (nothing shared)."""

SMALL = {
    **{repr(a): Pairs(2, 2, 3, 5, bias=a, gain=a) for a in AXES},
    "batch and heads": Pairs(2, 2, 3, 5, bias="hq", gain="bq"),
    "all and nothing": Pairs(2, 1, 6, 5, bias="", gain="bhq"),
    "causal": Pairs(2, 1, 9, 17, bias="hq", causal=True),
    "padding": Pairs(2, 2, 6, 9, bias="bq", gain="hq", padding=True),
    "hidden": Pairs(2, 2, 6, 9, gain="hq", hidden=True),
    "bias": Pairs(2, 1, 6, 9, gain=None, bias="hq"),
    "neither": Pairs(1, 1, 6, 9, bias=None, gain=None),
    "one key": Pairs(2, 1, 3, 1, bias="q"),
    "odd size": Pairs(1, 2, 3, 5, d=10),
    "dropout": Pairs(2, 1, 6, 9, gain="hq", padding=True, dropout=0.4),
    "dropout, no gain": Pairs(1, 1, 18, 9, gain=None, dropout=0.3),
    "whole tiles": Pairs(1, 1, 32, 32, bias="hq"),
}
"""One tile holds all keys."""

TILED = {
    "all": Pairs(2, 1, 3, 18, bias="", gain=""),
    "batch": Pairs(2, 1, 17, 5, bias="hq", gain="hq"),
    "heads": Pairs(1, 2, 17, 5, bias="bq", gain="bq"),
    "queries": Pairs(1, 2, 18, 5, bias="bh", gain="bh"),
    "nothing": Pairs(2, 1, 17, 18),
    "batch and heads": Pairs(2, 2, 5, 6, bias="bq", gain="hq"),
    "one row and nothing": Pairs(1, 2, 18, 5, bias="h", gain="bhq"),
    "causal": Pairs(1, 1, 20, 40, bias="q", causal=True),
    "causal, more queries": Pairs(2, 1, 20, 17, gain="hq", causal=True),
    "padding": Pairs(2, 1, 5, 33, bias="bhq", gain="h", padding=True),
    "hidden": Pairs(2, 1, 6, 20, gain="hq", hidden=True),
    "gain": Pairs(2, 1, 6, 20, bias=None, gain="hq"),
    "whole tiles": Pairs(1, 1, 32, 32, gain="hq"),
    "wide heads": Pairs(1, 1, 3, 20, d=200),
    "dropout": Pairs(2, 1, 18, 5, bias="hq", gain="h", dropout=0.4),
    "dropout, no gain": Pairs(1, 1, 5, 20, gain=None, dropout=0.3),
}
"""Tiles of 16 x 16."""


def drawn(case: Pairs, dtype: torch.dtype = torch.float32) -> Operands:
    given = case.operands(dtype)
    return given._make(y.to(DEVICE) if isinstance(y, Tensor) else y for y in given)


def by_kernels(launch: Any, x: Operands) -> Results:
    found = results(launch, x)
    found["lse"] = found["lse"] * math.log(2)
    return found


@pytest.mark.rows(10)
@pytest.mark.parametrize("name", SMALL)
def test_kernels_for_small_problems(launch: Any, name: str) -> None:
    """Output and every gradient against float64; interpreted without a GPU."""
    x = drawn(SMALL[name])
    found = by_kernels(launch, x)
    if x.k.shape[2] == 1:  # `paths` sets these to the 0 that they are
        found |= {name: 0 * found[name] for name in ("dq", "dk", "dbias")}
    assert_agrees(found, expected(x), torch.float32)


@pytest.fixture
def tiny_tiles(launch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tiles for few tokens."""
    tuning = import_module("everyformer.ops.pairwise_attention.tuning")
    monkeypatch.setattr(tuning, "LONGEST_SMALL", 0)
    monkeypatch.setitem(tuning.FULL, 64, tuning.FULL[256])


@pytest.mark.rows(8)
@pytest.mark.usefixtures("tiny_tiles")
@pytest.mark.parametrize("name", TILED)
def test_kernels_for_tiles(launch: Any, name: str) -> None:
    x = drawn(TILED[name])
    assert_agrees(by_kernels(launch, x), expected(x), torch.float32)


CHUNKED_CASES = {
    **{repr(a): Pairs(2, 3, 5, 7, bias=a, gain=a, d=3) for a in AXES},
    "steps": Pairs(2, 2, 130, 9, bias="hq", gain="bq", d=3, causal=True, padding=True),
    "hidden": Pairs(2, 2, 6, 9, gain="h", hidden=True),
    "causal, more keys": Pairs(1, 2, 5, 9, bias="q", causal=True),
    "neither": Pairs(1, 1, 6, 9, bias=None, gain=None),
    "dropout": Pairs(3, 2, 9, 7, bias="hq", gain="q", dropout=0.4),
}


@pytest.mark.parametrize("small_steps", [False, True])
@pytest.mark.parametrize("name", CHUNKED_CASES)
def test_chunks(name: str, small_steps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, also by steps of four queries and one head."""
    if small_steps:
        monkeypatch.setattr(chunked, "CHUNK", 4)
        monkeypatch.setattr(chunked, "STEP_ENTRIES", 1)
    x = CHUNKED_CASES[name].operands()
    assert_agrees(results(chunked, x), expected(x), torch.float64)


def _always(q: Tensor) -> bool:
    return True


class TestPairwiseAttention(OperatorContract):
    """What every operator must do."""

    small: ClassVar[dict[str, Operator]] = {
        "nothing shared": operator(Pairs(1, 2, 3, 4, 2)),
        "shared": operator(Pairs(2, 2, 3, 4, 2, bias="hq", gain="bq", padding=True)),
        "rows": operator(Pairs(2, 1, 4, 3, 2, bias="b", gain="", causal=True)),
        "hidden": operator(Pairs(2, 1, 3, 4, 2, bias="q", gain=None, hidden=True)),
        "gain": operator(Pairs(2, 1, 3, 3, 1, bias=None, gain="hq")),
        "dropout": operator(Pairs(2, 1, 3, 3, 1, bias="q", gain=None, dropout=0.3)),
    }
    infinite = "hidden"
    longer: ClassVar[dict[str, Operator]] = {
        "rectangle": operator(Pairs(2, 2, 9, 13, 3, bias="q", padding=True)),
        "steps": operator(Pairs(2, 2, 130, 7, 3, gain="h", causal=True)),
    }
    interpreted = operator(Pairs(2, 1, 5, 7, bias="hq", gain="b", padding=True))

    def use_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = import_module("everyformer.ops.pairwise_attention.paths")
        monkeypatch.setattr(paths, "_by_kernels", _always)

    def custom_ops(self, layout: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        q, k, v = (laid_out(layout, 2, 2, n, 4).detach() for n in (5, 7, 7))
        bias = normal(1, 5, 7, q.shape[1]).movedim(-1, 1)
        gain = normal(q.shape[0], 1, 5, 14)[..., ::2]
        padded = torch.zeros(q.shape[0], 7, dtype=torch.bool)
        padded[:, 6] = True
        x = (
            *(y.requires_grad_() for y in (q, k, v, bias, gain)),
            padded,
            torch.tensor([5]),
        )
        x = (*x, True, 0.3, 0.2)
        yield library.forward_op, x
        with torch.no_grad():
            out, lse = library.forward_op(*x)
        grad = laid_out(layout, 2, 2, 5, 4).detach().requires_grad_()
        yield library.gradients_op, (*x, grad, out, lse, True, True)


@pytest.mark.compile
def test_compiled() -> None:
    """As one graph, forward and backward, with the layout of heads that layers have."""
    torch.compiler.reset()
    x, table, gain = normal(2, 9, 12), normal(9, 9, 3), normal(2, 1, 9, 9)
    leaves = [y.requires_grad_() for y in (x, table, gain)]

    def model(attend: Any) -> Any:
        def called(x: Tensor, table: Tensor, gain: Tensor) -> Tensor:
            q = x.unflatten(-1, (3, 4)).transpose(1, 2)
            bias = table.sin().movedim(-1, 0)[None]
            return attend(q, q.cos(), q * q, bias, gain, causal=True).sin()

        return called

    fast, plain = model(pairwise_attention), model(pairwise_attention_reference)
    out, wanted = torch.compile(fast, fullgraph=True)(*leaves), plain(*leaves)
    one, two = (torch.autograd.grad(y.square().sum(), leaves) for y in (out, wanted))
    assert gap((out, one), (wanted, two)) <= EXACT


@pytest.mark.usefixtures("tiny_tiles")
@pytest.mark.parametrize("how", ["columns", "every second", "expanded", "wide"])
def test_a_bias_with_any_strides(
    launch: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By kernels with tiles; nothing is copied, since the memory between holds NaN."""
    x = drawn(Pairs(1, 2, 18, 5))
    assert x.bias is not None
    assert x.gain is not None
    if how == "expanded":
        x = x._replace(bias=x.bias[:, :1].expand_as(x.bias))
    elif how == "wide":
        monkeypatch.setattr(launch, "_reach", lambda *_: 2**31)  # pyright: ignore[reportUnknownLambdaType]
    else:
        layout = "tokens last" if how == "columns" else how
        x = x._replace(bias=as_laid_out(layout, x.bias), gain=as_laid_out(layout, x.gain))
    assert_agrees(by_kernels(launch, x), expected(x), torch.float32)


def test_frozen_matrices_cost_nothing(launch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn(Pairs(2, 1, 3, 5, bias="hq", gain="hq"))
    out, lse = launch.forward(x)
    frozen = Incoming(torch.ones_like(out), out, lse, False, False)
    monkeypatch.setattr(launch.kernels, "_sums_kernel", None)
    assert launch.backward(x, frozen)[3:] == (None, None)
    with pytest.raises(AttributeError, match="NoneType"):
        launch.backward(x, frozen._replace(needs_bias=True))


@pytest.mark.parametrize("batch", [2, 1000, 10**6])
def test_partial_sums_do_not_grow_with_the_batch(batch: int) -> None:
    for problems, n in itertools.product([(True, False), (True, True)], [64, 2048]):
        warps = 4 * (n // 16) * (n // 64)
        split = Split.of(problems, (batch, 12, n, n), warps)
        assert split.owners * split.parts * warps <= max(ENOUGH_WARPS, split.owners * warps)
        assert split.parts * split.share >= split.steps


class _Largest(TorchDispatchMode):
    """Keeps the size of the largest tensor that is made."""

    size = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for x in tree_leaves(found):
            if isinstance(x, Tensor) and not x._is_view():
                self.size = max(self.size, x.untyped_storage().nbytes() // x.itemsize)
        return found


def test_memory_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has n^2 entries for each head but what has them anyway."""
    monkeypatch.setattr(chunked, "STEP_ENTRIES", 2**14)
    x = Pairs(2, 4, 256, 256, 2, bias="q", gain="hq").operands()
    with _Largest() as seen:
        results(chunked, x)
    assert seen.size == 4 * 256 * 256  # the gradient of the gain
    with _Largest() as seen:
        pairwise_attention_reference(*x[:5])
    assert seen.size == 8 * 256 * 256, "a negative control"


def test_minus_infinity_is_a_mask() -> None:
    """The same bits as padding; and a row without keys is 0 with gradients 0."""
    x = Pairs(2, 2, 5, 6, bias="bhq", padding=True).operands()
    assert x.bias is not None
    assert x.key_padding is not None
    masked = x.bias.masked_fill(x.key_padding[:, None, None], -torch.inf)
    one, two = results(chunked, x), results(chunked, x._replace(bias=masked))
    assert all(torch.equal(one[name], two[name]) for name in one)
    one.pop("lse")
    assert not any(y[-1].any() for y in one.values())


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_nan_and_infinity_stay_in_their_row(launch: Any, wrong: float) -> None:
    x = drawn(Pairs(1, 2, 4, 5))
    assert x.bias is not None
    x.bias[0, 1, 2, 3] = wrong
    for path in (chunked, launch):
        out = results(path, x)["out"]
        assert out[0, 1, 2].isnan().all()
        assert out.isnan().sum() == 16


def test_one_key_has_no_gradient_of_the_logit() -> None:
    """In bf16, whose rounding would leave some."""
    x = Pairs(2, 1, 3, 1, gain="bhq").operands(torch.bfloat16)
    leaves = [y.requires_grad_() for y in x[:4] if y is not None]
    out = pairwise_attention(*leaves, x.gain)  # type: ignore[arg-type]
    dq, dk, dv, dbias = torch.autograd.grad(out.sin().sum(), leaves)
    assert not dq.any()
    assert not dk.any()
    assert not dbias.any()
    assert dv.all()


def test_its_relatives() -> None:
    """Toeplitz attention, PyTorch's own, checkpoints and autocast."""
    x = Pairs(2, 3, 5, 7, gain=None).operands(torch.float32)
    assert x.bias is not None
    ours = pairwise_attention(x.q, x.k, x.v, x.bias)
    torch.testing.assert_close(
        ours, scaled_dot_product_attention(x.q, x.k, x.v, attn_mask=x.bias)
    )
    rows = torch.randn(2, 3, 11)
    matrices = [toeplitz(row, 5, 7)[None] for row in rows]
    torch.testing.assert_close(
        pairwise_attention(x.q, x.k, x.v, *matrices),
        toeplitz_attention(x.q, x.k, x.v, rows[0], rows[1]),
    )
    again = checkpoint(pairwise_attention, x.q, x.k, x.v, x.bias, use_reentrant=False)
    assert isinstance(again, Tensor)
    assert torch.equal(again, ours)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = pairwise_attention(x.q, x.k, x.v, x.bias)
    assert half.dtype == torch.bfloat16
    assert (half - ours).abs().max() < 0.1


Given = dict[str, Any]

WRONG: dict[str, Callable[[Given], Given]] = {
    "q is a list; give a tensor": lambda x: x | {"q": [1.0]},
    "bias is a float; give a tensor": lambda x: x | {"bias": 0.5},
    "q, k, v have shapes (2, 5, 4)": lambda x: x | {"q": x["q"][0]},
    "(2, 2, 7, 3); they must be": lambda x: x | {"v": x["v"][..., :3]},
    "size (2, 2, 3), k has (2, 2, 4)": lambda x: x | {"q": x["q"][..., :3]},
    "for example with [None]": lambda x: x | {"bias": x["bias"][0]},
    "6 for the keys of which there are 7; give 7;": lambda x: (
        x | {"bias": x["bias"][..., :6], "gain": x["gain"].int()}
    ),
    "1 for the keys of which there are 7; give 7.": lambda x: (
        x | {"gain": x["gain"][..., :1]}
    ),
    "3 for the heads of which there are 2; give 2 or 1": lambda x: (
        x | {"gain": torch.ones(1, 3, 5, 7)}
    ),
    "4 for the queries of which there are 5": lambda x: x | {"bias": x["bias"][:, :, 1:]},
    "3 for the batch of which there are 2": lambda x: (
        x | {"bias": x["bias"][:1].expand(3, -1, -1, -1)}
    ),
    "bias has dtype torch.bool; give floating-point numbers, for a mask 0 and -inf": (
        lambda x: x | {"bias": x["bias"] > 0}
    ),
    "gain has dtype torch.int64": lambda x: x | {"gain": x["gain"].long()},
    "key_padding has shape (2, 5) and dtype torch.bool; give bool (2, 7)": lambda x: (
        x | {"key_padding": torch.zeros(2, 5, dtype=torch.bool)}
    ),
    "dtype torch.float32; give bool": lambda x: x | {"key_padding": torch.zeros(2, 7)},
    "torch.float16; give one kind": lambda x: x | {"v": x["v"].half()},
    "q has dtype torch.int64": lambda x: x | {name: x[name].long() for name in "qkv"},
    "is empty": lambda x: x | {name: x[name][:, :0] for name in "qkv"},
    "tensors lie on ['cpu', 'meta']": lambda x: x | {"gain": x["gain"].to("meta")},
    "seed has shape (2,) and dtype torch.int32; give int64 (1,)": lambda x: (
        x | {"seed": torch.zeros(2, dtype=torch.int32)}
    ),
    "dropout is 1.5; give a probability": lambda x: x | {"dropout": 1.5},
    "scale=nan makes every score": lambda x: x | {"scale": torch.nan},
}


@pytest.mark.parametrize("text", WRONG)
def test_refusals(text: str) -> None:
    x = Pairs(2, 2, 5, 7, 4).operands(torch.float32)
    with pytest.raises(InputError, match=re.escape(text)):
        pairwise_attention(**WRONG[text](dict(zip(NAMES, x, strict=False))))


def test_all_reasons_at_once() -> None:
    x = Pairs(2, 2, 5, 7, 4).operands(torch.float32)
    with pytest.raises(InputError) as refused:
        pairwise_attention(
            *x[:3], torch.ones(3, 5, 1, 6), torch.ones(7).int(), scale=torch.inf
        )
    assert str(refused.value).count("; give") == 6
