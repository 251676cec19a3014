"""Memorising: exact on the set, in any order of summation; contradictions are named."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everyformer as ef
from everyformer.errors import DomainError, TargetError


@settings(deadline=None, max_examples=4)  # of each, all sequences; each is compiled
@given(
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(1, 9),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_exact_on_the_set(
    n: int, count: int, symbols: int, equivariant: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, symbols, (count, n))
    f = rng.normal(size=(symbols, symbols + 1))
    y = f[x, (x.sum(axis=1, keepdims=True)) % (symbols + 1)]  # a function, equivariant
    memory = ef.memorise(x, y, equivariant=equivariant)
    for executor in ("literal", "reference"):
        assert (memory.network(memory.inputs, executor=executor) == memory.outputs).all()
    if equivariant:
        order = rng.permutation(n)
        assert (memory.network(memory.inputs[:, order])[..., 0] == y[:, order]).all()


def test_vectors_and_outputs_of_many_bits() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.random((150, 3, 2)), rng.normal(size=(150, 3, 2))
    y *= 10.0 ** rng.integers(-6, 6, y.shape)
    for equivariant in (False, True):
        memory = ef.memorise(x, y, equivariant=equivariant)
        assert memory.wrong().size == 0
    swapped = memory.network(x[:, [2, 0, 1]])
    assert (swapped == y[:, [2, 0, 1]]).all()
    # In rationals the two rounding units do nothing, and the result is the same.
    assert (memory.network.exact(x[:3]).astype(float) == y[:3]).all()


def test_every_order_of_summation_gives_the_same_bits() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    x, y = rng.integers(0, 64, (500, 7)), rng.normal(size=(500, 7))
    memory = ef.memorise(x, y)
    module = memory.network.to_torch()
    found = module(torch.from_numpy(memory.inputs)).detach().numpy()
    assert (found == memory.outputs).all()
    shuffled = dict(memory.network.arrays())
    last = len(memory.network.stages) - 1
    order = rng.permutation(shuffled[f"stages.{last}.feed_forward.W_1"].shape[1])
    for name in ("W_1", "b_1"):
        key = f"stages.{last}.feed_forward.{name}"
        shuffled[key] = shuffled[key][:, order]
    key = f"stages.{last}.feed_forward.W_2"
    shuffled[key] = shuffled[key][:, :, order]
    other = memory.network.with_arrays(shuffled)
    assert (other(memory.inputs) == memory.outputs).all()


def test_size_is_linear_in_the_total_length() -> None:
    rng = np.random.default_rng(3)
    sizes: list[int] = []
    for count in (200, 400, 800):
        x = rng.integers(0, 32, (count, 6))
        sizes.append(ef.memorise(x, x[:, ::-1]).cost.nonzeros)
    assert sizes[2] - sizes[1] == pytest.approx(2 * (sizes[1] - sizes[0]), rel=0.02)


def test_many_sequences() -> None:
    """1,000 of length 8 over 64 symbols."""
    rng = np.random.default_rng(4)
    x, y = rng.integers(0, 64, (1000, 8)), rng.integers(0, 64, (1000, 8))
    memory = ef.memorise(x, y)
    assert memory.wrong().size == 0
    assert memory.cost.attention_layers == 1


def test_equal_rows_are_kept_once() -> None:
    memory = ef.memorise([[1, 2], [1, 2], [2, 2]], [[5, 6], [5, 6], [0, 0]])
    assert memory.wrong().size == 0


@pytest.mark.parametrize(
    ("x", "y", "equivariant", "text"),
    [
        ([[1, 2], [3, 4], [1, 2]], [[0, 0], [0, 0], [0, 1]], False, "Rows 0 and 2"),
        ([[1, 2], [2, 1]], [[0, 5], [6, 0]], True, r"Rows 0 and 1.*order of its tokens"),
        ([[1, 1]], [[0, 5]], True, "Row 0 has two equal tokens"),
        ([[1, 2]], [[1, 2, 3]], False, "equal shapes"),
        ([1, 2], [1, 2], False, r"not \(count, n\)"),
        ([[np.nan, 2]], [[1, 2]], False, "not finite"),
        ([["a", "b"]], [[1, 2]], False, "does not hold real numbers"),
        ([[1, 2]], [[1e300, 1e-300]], False, "bits from the largest"),
        ([[1.0, 1.0 + 2**-52]], [[1, 2]], False, "2.22e-16 apart"),
    ],
)
def test_refused(x: Any, y: Any, equivariant: bool, text: str) -> None:
    with pytest.raises(TargetError, match=text):
        ef.memorise(x, y, equivariant=equivariant)


def test_values_too_near_for_their_number_are_refused() -> None:
    x = np.concatenate(
        [np.random.default_rng(0).random((400, 3)), [[0.5, 0.5 + 2**-53, 1]]]
    )
    with pytest.raises(TargetError, match=r"values, the nearest .* apart"):
        ef.memorise(x, x)


def test_inputs_outside_the_box_of_the_set_are_refused() -> None:
    memory = ef.memorise([[1, 2]], [[3, 4]])
    with pytest.raises(DomainError, match="the network approximates on the domain alone"):
        memory.network(np.array([[[7.0], [2.0]]]))
