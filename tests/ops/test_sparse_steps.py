"""What sparse attention in plain torch is made of: places, products and steps."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from everyformer import patterns
from everyformer.ops.sparse_attention import steps as module
from everyformer.ops.sparse_attention.bounds import bound_of
from everyformer.ops.sparse_attention.pieces import Listed, Outside
from everyformer.ops.sparse_attention.places import Lattice, Scattered, places
from everyformer.ops.sparse_attention.products import product
from everyformer.ops.sparse_attention.rectangles import rectangles
from everyformer.ops.sparse_attention.routes import pieces_of
from everyformer.ops.sparse_attention.steps import Steps

CPU = torch.device("cpu")
FLOAT = torch.empty(())
ROOM = 2**16


@st.composite
def tokens(draw: st.DrawFn) -> tuple[int, Tensor]:
    """Equal distances, some with rows in common, or one token that breaks them."""
    small = st.integers(1, 4)
    outer, inner, size = draw(small), draw(small), draw(small)
    far, near, step = draw(st.integers(1, 9)), draw(small), draw(small)
    i, j, k = np.ogrid[:outer, :inner, :size]
    found = (draw(st.integers(0, 3)) + far * i + near * j + step * k).reshape(-1, size)
    n = int(found.max()) + draw(st.integers(1, 3))
    if draw(st.booleans()):
        found[draw(st.integers(0, len(found) - 1)), -1] = draw(st.integers(0, n))
    return n, torch.as_tensor(found)


@given(tokens(), st.integers(1, 3), st.booleans())
@settings(max_examples=200, deadline=None)
def test_places_read_and_write_the_tokens_that_they_are_made_of(
    given: tuple[int, Tensor], p: int, scaled: bool
) -> None:
    n, index = given
    g, c = index.shape
    where = places(index, n, CPU)
    assert torch.equal(where.tokens(CPU), index)
    random = torch.Generator().manual_seed(0)
    x, a, b = (
        torch.randn(*shape, generator=random, dtype=torch.float64)
        for shape in ((p, n + 1, 3), (p * g, c, 2), (p * g, 2, 3))
    )
    assert torch.equal(where.of(x), x[:, index].flatten(0, 1))
    scale = 0.7 if scaled else 1.0
    terms, wanted = scale * (a @ b).view(p, g, c, 3), x.clone()
    for rectangle in range(g):
        wanted.index_add_(1, index[rectangle], terms[:, rectangle])
    found = x.clone()
    where.add(found, a, b, scale, fresh=False)
    assert (found - wanted).abs().max() < 1e-13
    if len(index.unique()) == index.numel():
        written, apart = x.clone(), x.clone()
        where.add(written, a, b, scale, fresh=True)
        where.put(apart, terms.flatten(0, 1))
        wanted[:, index] = terms
        assert (written - wanted).abs().max() < 1e-13
        assert (apart - wanted).abs().max() < 1e-13


def test_nobody_is_in_no_lattice() -> None:
    index = torch.arange(6).view(2, 3)
    assert isinstance(places(index, 6, CPU), Lattice)
    assert isinstance(places(index, 5, CPU), Scattered)


@pytest.mark.parametrize("name", ["window", "strided", "fixed", "dense"])
def test_tokens_of_bands_lie_on_lattices(name: str) -> None:
    """Where sizes divide, both ways: no index is looked up."""
    make = getattr(patterns, name)
    pattern = make(512) if name == "dense" else make(512, 16)
    for made in (pattern, pattern.causal_part()):
        found, nobody = Steps(pieces_of(made.parts[0]), 512).of((), ROOM, FLOAT)
        assert not nobody
        both = [(step.queries, step.keys) for step in found]
        assert all(isinstance(x, Lattice) for each in both for x in each)


def test_steps_are_made_once_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(pieces_of(patterns.window(64, 3).parts[0]), 64)
    wanted = (), ROOM, FLOAT
    first, nobody = steps.of(*wanted)
    assert steps.of(*wanted) == (first, nobody)
    assert steps.of(*wanted)[0] is first
    assert steps.of((), ROOM, FLOAT.double())[0] is not first
    monkeypatch.setattr(module, "BYTES", 0)
    monkeypatch.setattr(module, "BYTES_PER_TOKEN", 0)
    streamed, nobody = steps.of(*wanted)
    assert nobody  # perhaps: nobody knows before all are made
    assert not isinstance(streamed, list)
    assert len(list(streamed)) == len(list(first))
    monkeypatch.undo()
    kept, _ = steps.of("another", *wanted[1:])
    assert steps.of("another", *wanted[1:])[0] is kept
    again, _ = steps.of(*wanted)  # of equal shapes the same, whatever came between
    assert again is not kept


def test_a_bound_is_of_the_columns_in_which_pairs_are_hidden() -> None:
    hidden = torch.ones(1, 3, 3, dtype=torch.bool).triu(1)
    hidden = torch.nn.functional.pad(hidden, (4, 2))
    bound = bound_of(hidden, torch.float64, CPU)
    assert bound is not None
    assert (bound.first, bound.most.shape[-1]) == (5, 2)
    logits = torch.randn(2, 2, 3, 9, dtype=torch.float64)
    wanted = logits.masked_fill(hidden, -torch.inf)
    bound.apply(logits)
    assert torch.equal(logits, wanted)
    assert bound_of(torch.zeros_like(hidden), torch.float64, CPU) is None


@pytest.mark.parametrize("shape", [(3, 4, 5, 2), (3, 4, 1, 2), (3, 1, 5, 1), (1, 1, 1, 1)])
def test_products(shape: tuple[int, int, int, int]) -> None:
    b, m, k, n = shape
    left = torch.randn(b, m, k, dtype=torch.float64)
    right = torch.randn(b, k, n, dtype=torch.float64)
    for scale in (1.0, -0.3):
        assert (product(left, right, scale) - scale * (left @ right)).abs().max() < 1e-14


def test_causal_lists_have_half_of_the_pairs() -> None:
    """Every step ends at its last query, and rounds up to a multiple of 16 keys."""
    n = 4096
    columns = np.arange(63, n, 64, dtype=np.int32)
    both = (Listed(None, columns), Listed(None, columns, outside=Outside(gap=(0, n))))
    pairs = [
        sum(
            one.queries.numel() * one.keys.shape[1]
            for one in rectangles([piece], n, 2**14, CPU)
        )
        for piece in both
    ]
    assert pairs[1] < 0.65 * pairs[0]
