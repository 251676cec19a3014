"""The Triton kernels of sparse attention against dense masked attention.

Interpreted without a GPU, with tiles and stretches so small that every cut is met.
"""

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from tests.ops.cases import Results, assert_agrees
from tests.ops.sparse_cases import (
    SEED,
    Given,
    given_tensors,
    natural,
    wanted_results,
    without_edge,
)

from everyformer import patterns
from everyformer.errors import InputError
from everyformer.ops.launching import Tiles
from everyformer.ops.sparse_attention import library
from everyformer.ops.sparse_attention.operands import Incoming, Operands
from everyformer.ops.sparse_attention.pieces import Listed
from everyformer.ops.sparse_attention.plans import plan_of
from everyformer.ops.sparse_attention.routes import pieces_of
from everyformer.patterns import Part

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRITON = pytest.importorskip("triton")

CASES: dict[str, tuple[Part, int, str]] = {
    "window": (patterns.Window(35, 3, 18), 16, "none"),
    "window, padded": (patterns.Window(35, 3, 18), 16, "all"),
    "stride": (patterns.Stride(35, 2), 12, "some"),
    "strided, union": (patterns.strided(17, 4).union().parts[0], 16, "none"),
    "fixed": (patterns.Columns(18, 5, last=True), 16, "some"),
    "fixed, union": (patterns.fixed(18, 8).union().parts[0], 16, "none"),
    "window and global": (patterns.WindowGlobal(20, 1, (3,)), 16, "some"),
    "blocks": (patterns.Blocks(37, 16, ((0, 1, 2), (0, 1), (0, 2))), 16, "none"),
    "star": (patterns.Star(35, 1), 12, "some"),
    "star, three neighbours": (patterns.Star(23, 3), 16, "none"),
    "star, one tile": (patterns.Star(6, 1), 16, "all"),
    "star, wide": (patterns.Star(24, 9), 16, "some"),
    "lists": (patterns.log_sparse(11, causal=True).parts[0], 12, "some"),
    "one token": (patterns.Star(1, 1), 16, "none"),
    "strided, causal": (patterns.past_of(patterns.Stride(35, 2)), 12, "some"),
    "fixed, causal": (patterns.past_of(patterns.Columns(18, 5, last=True)), 16, "some"),
    "fixed, union, causal": (
        patterns.fixed(18, 8).union().causal_part().parts[0],
        16,
        "all",
    ),
    "blocks, causal": (
        patterns.past_of(patterns.Blocks(53, 16, ((0, 1), (1, 2), (0, 2, 3), (0, 1, 3)))),
        16,
        "some",
    ),
    "whole blocks, causal": (
        patterns.past_of(patterns.Blocks(96, 32, ((0,), (0, 1, 2), (0, 1, 2)))),
        16,
        "none",
    ),
    "large blocks, causal": (
        patterns.past_of(patterns.Blocks(90, 40, ((0,), (0, 1), (0, 1, 2)))),
        16,
        "some",
    ),
    "global, causal": (patterns.past_of(patterns.WindowGlobal(20, 1, (3, 17))), 16, "none"),
}
"""A part, the size of a head, and padding."""


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The launcher, with small tiles and short stretches; it imports Triton."""
    found = import_module("everyformer.ops.sparse_attention.launch")
    walks = import_module("everyformer.ops.sparse_attention.walks")
    sizes = Tiles(16, 16, 4, 2)
    monkeypatch.setattr(found.tuning, "FULL", found.tuning.Tuning(sizes, sizes, sizes))
    monkeypatch.setattr(found.tuning, "RING", {"full": {64: (16, 4)}})
    monkeypatch.setattr(found.tuning, "STRANDS", {"R": 8, "E": 2, "num_warps": 4})
    for name, longest in (("CHUNK", 12), ("LIST", 2), ("STRAND", 3)):
        monkeypatch.setattr(walks, f"LONGEST_{name}", longest)
    return found


def kernels(launch: Any, x: Given, part: Part, dropout: float = 0.0) -> Results:
    walks = launch.Walks(pieces_of(part), part.n, torch.device(DEVICE))
    given = x.operands(part, dropout, SEED.to(DEVICE))
    out, lse = launch.forward(given, walks)
    gradients = launch.backward(given, Incoming(x.grad_out, out, lse), walks)
    found = {"out": out, "lse": natural(lse)}
    found |= dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    return {name: tensor.cpu() for name, tensor in found.items()}


DROPPED = (
    "strided, union", "fixed", "window and global", "star", "lists", "blocks",
    "whole blocks, causal",
)  # fmt: skip
"""With dropout, one for each kernel, band, strip and own key; the others are without."""


@pytest.mark.rows(9)
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients(launch: Any, name: str) -> None:
    part, d, padding = CASES[name]
    dropout = 0.4 if name in DROPPED else 0.0
    batch = 2 if padding == "all" or name == "fixed" else 1
    heads = 2 if name == "star" else 1
    x = given_tensors(part.n, d, batch, heads, padding).to(torch.float32)
    found = kernels(launch, x.to(torch.float32, DEVICE), part, dropout)
    assert_agrees(found, wanted_results(x, part, dropout), torch.float32)


@pytest.mark.parametrize(
    "part",
    [
        patterns.past_of(patterns.Columns(300, 7, last=True)),
        patterns.past_of(patterns.WindowGlobal(300, 5, (3, 40, 290))),
        patterns.fixed(300, 20).union().causal_part().parts[0],
    ],
    ids=["columns", "global", "fixed"],
)
def test_strips_of_the_past_are_walked_without_the_future(part: Part) -> None:
    """Every pair that counts is met, and of two-sided strips about half is not."""
    walks = import_module("everyformer.ops.sparse_attention.walks")
    device = torch.device("cpu")
    for piece in pieces_of(part):
        if not isinstance(piece, Listed):
            continue
        lists = [np.arange(300) if x is None else x for x in (piece.queries, piece.keys)]
        assert piece.outside.gap is not None
        for owner in ("queries", "keys"):
            owners, partners = lists if owner == "queries" else lists[::-1]
            walk = walks.tile_walk(piece, 300, owner, (16, 16), device)
            M, tiles = walk.options["M"], walk.numbers[-2]
            met = np.zeros((len(owners), len(partners)), dtype=bool)
            for number, (low, high) in enumerate(walk.lists[3].tolist()):
                first = number % tiles * M
                met[first : first + M, low:high] = True
            query, key = lists[0][:, None], lists[1][None, :]
            counts = key < query - piece.outside.gap[0]
            counts = counts if owner == "queries" else counts.T
            assert met[counts].all()
            wasted = met & ~counts
            assert wasted.sum() <= M * (len(partners) + len(owners))


@pytest.mark.parametrize(("n", "block"), [(256, 64), (256, 16), (230, 64), (200, 40)])
@pytest.mark.parametrize("owner", ["queries", "keys"])
@pytest.mark.parametrize("past", [True, False])
def test_blocks_are_walked_once(
    monkeypatch: pytest.MonkeyPatch, n: int, block: int, owner: str, past: bool
) -> None:
    """Every pair that counts is met once; no tile is for nothing or hides unmasked."""
    walks = import_module("everyformer.ops.sparse_attention.walks")
    monkeypatch.setattr(walks, "LONGEST_LIST", 3)
    part = patterns.big_bird_blocks(n, block, 1, 2, 3).parts[0]
    part = patterns.past_of(part) if past else part
    (piece,) = pieces_of(part)
    walk = walks.tile_walk(piece, n, owner, (32, 16), torch.device("cpu"))
    M, N, span = (walk.options[name] for name in ("M", "N", "SPAN"))
    counts = part.mask() if owner == "queries" else part.mask().T
    met = np.zeros_like(counts, dtype=int)
    for first, low, high, _, cut in walk.lists[3].tolist():
        whole = range(low, cut) if owner == "queries" else range(cut, high)
        last = min(first + M, first // block * block + block, n)
        for t in range(low, high, N):
            partner = int(walk.lists[2][t // span]) * block
            left = partner + t % span
            tile = np.s_[first:last, left : min(left + N, partner + block, n)]
            met[tile] += 1
            assert not (walk.options["PLAIN"] and t in whole) or counts[tile].all()
            assert counts[tile].any() or not counts[tile].size  # beyond the end
    assert (met <= 1).all()
    assert (met[counts] == 1).all()


def test_a_wrong_edge_is_noticed(launch: Any) -> None:
    """Negative control."""
    part = patterns.Star(12, 1)
    x = given_tensors(12, 16, batch=1, heads=1).to(torch.float32)
    found = kernels(launch, x.to(torch.float32, DEVICE), part)
    for query, key in ((0, 10), (11, 4), (5, 11)):  # the ring's seam, the relay both ways
        wanted = wanted_results(x, without_edge(part, query, key))
        with pytest.raises(AssertionError, match="out is off"):
            assert_agrees(found, wanted, torch.float32)
    dropped = kernels(launch, x.to(torch.float32, DEVICE), part, 0.1)
    with pytest.raises(AssertionError, match="out is off"):  # one in ten, others grown
        assert_agrees(dropped, wanted_results(x, part, 0.1001), torch.float32)


def test_strides_are_respected(launch: Any) -> None:
    """Heads and tokens exchanged, as a layer has them: no copy is needed."""
    part = patterns.Star(9, 1)
    x = given_tensors(9, 16, batch=1, heads=2).to(torch.float32)
    y = x.to(torch.float32, DEVICE)
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (y.q, y.k, y.v))
    assert not q.is_contiguous()
    found = kernels(launch, Given(q, k, v, y.grad_out, None), part)
    assert_agrees(found, wanted_results(x, part), torch.float32)


def test_more_heads_than_a_grid_has_room_for(launch: Any) -> None:
    q = torch.zeros(1, 1, 1, 16).expand(11000, 2, 1, 16)
    x = Given(q, q, q, q, None).operands(patterns.Star(1, 1))
    with pytest.raises(InputError, match="22000 pairs, but one call takes 21845"):
        launch.forward(x, launch.Walks((), 1, q.device))
    assert launch.Problem.of(x._replace(q=q[:10])).pairs == 20


def test_a_custom_op_copies_no_gradient(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels write all three into one tensor, and that is its output."""
    written: list[torch.Tensor] = []

    def spied(*given: Any, backward: Any = launch.joined_backward) -> torch.Tensor:
        written.append(backward(*given))
        return written[-1]

    paths = import_module("everyformer.ops.sparse_attention.paths")
    monkeypatch.setattr(paths, "_by_kernels", torch.is_tensor)
    monkeypatch.setattr(launch, "joined_backward", spied)
    part = patterns.Window(35, 3, 18)
    x = given_tensors(35, 16).to(torch.float32, DEVICE)
    plan, numbers = plan_of(part), (0.3, 0.0)
    given = (x.q, x.k, x.v, None, None, plan.handle, *numbers)
    out, lse = library.forward_op(*given)
    found = library.gradients_op(x.grad_out, *given[:5], out, lse, *given[5:])
    assert found.data_ptr() == written[0].data_ptr()
    wanted = paths.gradients(
        Operands(*given[:5], plan, *numbers), Incoming(x.grad_out, out, lse)
    )
    for one, two in zip(found, wanted, strict=True):
        assert torch.equal(one, two)


def test_nothing_of_other_paths_is_used(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the fixture: without the kernel nothing runs."""
    kernel = import_module("everyformer.ops.sparse_attention.kernels.tiles")
    monkeypatch.setattr(kernel, "_dkv_kernel", None)
    x = given_tensors(5, 16, batch=1, heads=1).to(torch.float32).to(torch.float32, DEVICE)
    with pytest.raises(AttributeError, match="NoneType"):
        kernels(launch, x, patterns.Window(5, 1, 1))
