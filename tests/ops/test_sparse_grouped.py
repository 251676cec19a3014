"""Sparse attention on the CPU against dense masked attention, for every pattern."""

import math
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.cases import Results, assert_agrees
from tests.ops.sparse_cases import (
    SCALE,
    Given,
    all_parts,
    given_tensors,
    wanted_results,
    without_edge,
)
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from everyformer import patterns
from everyformer.ops.sparse_attention import grouped, plans, rectangles, steps
from everyformer.ops.sparse_attention.operands import Incoming
from everyformer.ops.sparse_attention.operator import sparse_attention
from everyformer.ops.sparse_attention.pieces import (
    Band,
    Masked,
    Outside,
    Piece,
    RingAndRelay,
)
from everyformer.ops.sparse_attention.reference import sparse_attention_reference
from everyformer.ops.sparse_attention.routes import pieces_of
from everyformer.ops.sparse_attention.steps import Steps
from everyformer.patterns import Part, Pattern

NAMES = list(all_parts(7))
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors: a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def results(x: Given, part: Part, *, as_mask: bool = False) -> Results:
    pieces = (Masked(part.rows()),) if as_mask else pieces_of(part)
    given, made = x.operands(part), Steps(pieces, part.n)
    out, lse = grouped.forward(given, made)
    gradients = grouped.backward(given, Incoming(x.grad_out, out, lse), made)
    return {"out": out, "lse": lse, **dict(zip(("dq", "dk", "dv"), gradients, strict=True))}


@pytest.mark.parametrize("padding", ["none", "all"])
def test_short_sequences_run_with_a_mask(padding: str) -> None:
    x = given_tensors(19, padding=padding)
    for part in all_parts(19).values():
        assert_agrees(results(x, part, as_mask=True), wanted_results(x, part), x.q.dtype)


def test_how_short() -> None:
    for n, kinds in ((plans.SHORT, [Masked]), (plans.SHORT + 1, [RingAndRelay])):
        part = patterns.Star(n, 1)
        assert [type(piece) for piece in plans.plan_of(part).groups] == kinds


def test_the_reference_is_the_definition() -> None:
    """o_k from the tokens of A_k alone, one query at a time."""
    x = given_tensors(9, padding="some")
    for part in all_parts(9).values():
        out = sparse_attention_reference(
            x.q, x.k, x.v, part, scale=SCALE, key_padding=x.key_padding
        )
        assert x.key_padding is not None
        for b in range(2):
            for k in range(9):
                heard = [j for j in part.heard(k).tolist() if not x.key_padding[b, j]]
                scores = SCALE * (x.k[b, :, heard] @ x.q[b, :, k, :, None])
                wanted = (torch.softmax(scores, 1) * x.v[b, :, heard]).sum(1)
                assert (out[b, :, k] - wanted).abs().max() < 1e-14


@pytest.mark.parametrize("name", NAMES)
def test_pieces_have_every_pair_once(name: str) -> None:
    """Of the pattern, and no other; with lists that are cut, and that are not."""
    for n, room in ((1, 9), (2, 9), (7, 10**6), (33, 40), (36, 10**6)):
        part = all_parts(n)[name]
        with mock.patch.object(rectangles, "CHOICES", (8,)):
            met = pairs_met(pieces_of(part), n, room)
        assert torch.equal(met[:n, :n], torch.tensor(part.mask()).long()), n
        assert not met[:, n].any()


def pairs_met(pieces: Sequence[Piece], n: int, room: int) -> Tensor:
    """How often each pair is in a rectangle and not hidden; n stands for nobody."""
    met = torch.zeros(n + 1, n + 1, dtype=torch.int64)
    for found in rectangles.rectangles(pieces, n, room, CPU):
        g, r = found.queries.shape
        rows = found.queries[:, :, None].expand(g, r, found.keys.shape[1])
        columns = found.keys[:, None, :].expand_as(rows)
        shown = torch.ones_like(rows, dtype=torch.bool)
        if found.hidden is not None:
            shown = ~found.hidden.expand_as(rows)
        met.index_put_((rows[shown], columns[shown]), torch.tensor(1), True)
    return met


@pytest.mark.parametrize("made", [patterns.window(1024, 64), patterns.dense(1024)])
def test_the_past_alone_costs_no_more_for_each_connection(made: Pattern) -> None:
    """Pairs that are computed, hidden ones included, follow the connections."""
    computed = [
        sum(
            found.queries.numel() * found.keys.shape[1]
            for found in rectangles.rectangles(pieces_of(part), 1024, 2**16, CPU)
        )
        / part.connections
        for part in (made.parts[0], made.causal_part().parts[0])
    ]
    assert computed[1] < 1.2 * computed[0] < 2


@st.composite
def bands(draw: st.DrawFn) -> tuple[int, Band]:
    """A window on all tokens, on residues or on segments, and pairs that it leaves out."""
    n = draw(st.integers(1, 70))
    w = draw(st.integers(1, n + 2))
    kinds = [(1, 0, 1, n), (min(w, n), 1, w, n), (-(-n // w), w, 1, w)]
    reach = st.sampled_from([0, 1, 5, 10**6])
    gap = draw(st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)))
    outside = Outside(gap, draw(st.none() | st.integers(1, 20)))
    return n, Band(*draw(st.sampled_from(kinds)), draw(reach), draw(reach), outside)


@given(bands(), st.sampled_from([(1,), (3, 7), (16, 32)]), st.sampled_from([1, 50, 10**6]))
@settings(max_examples=150, deadline=None)
def test_any_band_has_every_pair_once(
    given: tuple[int, Band], choices: tuple[int, ...], room: int
) -> None:
    n, band = given
    wanted = np.zeros((n, n), int)
    for origin in band.shift * np.arange(band.classes):
        tokens = np.arange(origin, n, band.step)[: band.limit]
        place = np.arange(len(tokens))
        gap, token_gap = place - place[:, None], tokens - tokens[:, None]
        inside = (gap >= -band.left) & (gap <= band.right)
        if band.outside.gap is not None:
            before, behind = band.outside.gap
            inside &= (token_gap < -before) | (token_gap > behind)
        if band.outside.segment is not None:
            segments = tokens // band.outside.segment
            inside &= segments != segments[:, None]
        wanted[np.ix_(tokens, tokens)] += inside
    with mock.patch.object(rectangles, "CHOICES", choices):
        assert np.array_equal(pairs_met([band], n, room)[:n, :n].numpy(), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients(name: str) -> None:
    for n, padding in ((1, "none"), (2, "all"), (19, "some"), (36, "none")):
        part = all_parts(n)[name]
        x = given_tensors(n, padding=padding)
        with mock.patch.object(rectangles, "CHOICES", (16,)):
            assert_agrees(results(x, part), wanted_results(x, part), torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_precisions(dtype: torch.dtype) -> None:
    for part in all_parts(21).values():
        x = given_tensors(21, d=8, padding="some").to(dtype)
        found = results(x, part)
        assert found["out"].dtype == found["dk"].dtype == dtype
        assert_agrees(found, wanted_results(x, part), dtype)


@given(
    n=st.integers(1, 40),
    name=st.sampled_from(NAMES),
    d=st.integers(1, 6),
    padding=st.sampled_from(["none", "some", "all"]),
    seed=st.integers(0, 2**16),
    numbers=st.sampled_from([1, 200, 2**22]),
)
@settings(max_examples=25, deadline=None)
def test_any_shape(
    n: int, name: str, d: int, padding: str, seed: int, numbers: int
) -> None:
    """However small the steps are."""
    part = all_parts(n)[name]
    x = given_tensors(n, d, batch=2, heads=1, padding=padding, seed=seed)
    with mock.patch.object(grouped, "STEP_NUMBERS", numbers):
        assert_agrees(results(x, part), wanted_results(x, part), torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_edge_is_noticed(name: str) -> None:
    """Negative control: one pair less changes the output and each gradient."""
    part = all_parts(12)[name]
    query, key = next(
        (k, int(part.heard(k)[-1])) for k in range(12) if len(part.heard(k)) > 1
    )
    x = given_tensors(12)
    wanted = wanted_results(x, without_edge(part, query, key))
    with pytest.raises(AssertionError, match=r"out is off .* dq is off .* dk is off .* dv"):
        assert_agrees(results(x, part), wanted, torch.float64)


def test_a_row_without_keys_gives_zero() -> None:
    x = given_tensors(10)
    padded = torch.zeros(2, 10, dtype=torch.bool)
    padded[:, 3:8] = True
    part = patterns.Window(10, 1, 1)  # tokens 4, 5, 6 hear nobody
    q, k, v = leaves = x.leaves()
    with torch.autograd.set_detect_anomaly(True):
        out, lse = sparse_attention(q, k, v, part, key_padding=padded, need_lse=True)
        dq, dk, dv = torch.autograd.grad(out, leaves, x.grad_out)
    assert not out[:, :, 4:7].any()
    assert (lse[:, :, 4:7] == -math.inf).all()
    assert not dq[:, :, 4:7].any()
    assert not dk[:, :, 3:8].any()
    assert not dv[:, :, 3:8].any()
    assert dv[:, :, 8].any()


def test_all_pairs_are_plain_attention() -> None:
    x = given_tensors(37, d=5)
    out = sparse_attention(x.q, x.k, x.v, patterns.Dense(37))
    wanted = functional.scaled_dot_product_attention(x.q, x.k, x.v)
    assert (out - wanted).abs().max() < 1e-13


def test_two_runs_have_equal_bits() -> None:
    for part in all_parts(50).values():
        x = given_tensors(50, d=8).to(torch.float32)
        first, second = results(x, part), results(x, part)
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_steps_that_are_too_large_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made anew, for all heads at once, and nothing else changes."""
    monkeypatch.setattr(steps, "BYTES", 0)
    monkeypatch.setattr(steps, "BYTES_PER_TOKEN", 0)
    monkeypatch.setattr(grouped, "NEAR_NUMBERS", 1)
    for part in all_parts(36).values():
        x = given_tensors(36, padding="some")
        first, second = results(x, part), results(x, part)
        assert_agrees(first, wanted_results(x, part), torch.float64)
        assert all(torch.equal(first[name], second[name]) for name in first)


class LargestStorage(TorchDispatchMode):
    """Notes the largest memory behind any tensor that an operation returns."""

    largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in pytree.tree_leaves(result):
            if isinstance(x, Tensor):
                self.largest = max(self.largest, x.untyped_storage().nbytes())
        return result


def test_memory_follows_the_connections() -> None:
    n = 2048
    x = given_tensors(n, d=4, batch=1, heads=1).to(torch.float32)
    small = mock.patch.object(grouped, "STEP_NUMBERS", 2**16)
    for pattern in (patterns.window(n, 4), patterns.star(n), patterns.log_sparse(n)):
        part = pattern.parts[0]
        with small, LargestStorage() as memory:
            results(x, part)
        assert part.connections <= 23 * n
        assert memory.largest <= 8 * 40 * n < 4 * n * n
    with LargestStorage() as memory:
        wanted_results(x, part)
    assert memory.largest >= 4 * n * n
