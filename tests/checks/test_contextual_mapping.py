"""The check itself: verdicts, witnesses, and what it refuses."""

from fractions import Fraction

import numpy as np
import pytest

import everyformer as ef
from everyformer.targets import centring, reverse
from everyformer.verdict import Verdict

PAIRS = [[[a], [b]] for a in range(3) for b in range(3) if a < b]


def test_a_map_of_the_user() -> None:
    def ids(x: np.ndarray) -> np.ndarray:
        tokens = x[:, :, 0]
        return tokens + 10 * (tokens**2).sum(axis=1, keepdims=True)

    result = ef.contextual_mapping(ids, PAIRS)
    assert result.verdict is Verdict.PROVED
    assert result.smallest_gap == 1
    assert str(result) == "PROVED on 3 sequences, smallest gap 1"


def test_averages_collide() -> None:
    """Section 5.2: the average of all tokens is no contextual mapping."""

    def average(x: np.ndarray) -> np.ndarray:
        return np.repeat(x.mean(axis=1), x.shape[1], axis=1)

    result = ef.contextual_mapping(average, [[[0], [2]], [[1], [3]], [[1], [1.0]]])
    assert result.verdict is Verdict.REFUTED
    assert result.within is not None
    assert result.across is not None
    assert result.across.id == 1
    assert "[(0) (2)]" in str(result)


def test_ids_on_the_wrong_side_are_named() -> None:
    inside = (Fraction(0), Fraction(5))
    sequences = [[[0], [1]], [[2], [2]]]
    result = ef.contextual_mapping(
        lambda x: x[:, :, 0] * 2, sequences, equivariant=True, interval=inside
    )
    assert result.verdict is Verdict.REFUTED
    assert result.stray is not None
    assert not result.stray.expected_inside
    assert "sequence 1 has the id 4, inside" in str(result)
    low = ef.contextual_mapping(
        lambda x: x[:, :, 0] * 9, sequences[:1], equivariant=True, interval=inside
    )
    assert low.stray is not None
    assert low.stray.expected_inside


def test_a_softmax_network_is_checked_in_float64() -> None:
    network = ef.construct(centring(2, 1), grid=4).network
    grid = [[[a / 4], [b / 4]] for a in range(4) for b in range(a, 4)]
    assert ef.contextual_mapping(network, grid).verdict is Verdict.PROVED
    with pytest.raises(ValueError, match="cannot hold these sequences"):
        ef.contextual_mapping(network, [[[Fraction(1, 3)], [0]]])


def test_a_single_token_is_lifted() -> None:
    network = ef.construct(reverse(1, 1), grid=4).network
    result = ef.contextual_mapping(network, [[[k / 4]] for k in range(4)])
    assert result.verdict is Verdict.PROVED
    assert result.smallest_gap == Fraction(1, 4)


def test_bad_arguments() -> None:
    network = ef.construct(centring(2, 1), grid=2).network
    with pytest.raises(ValueError, match="Sequences 0 and 1 are the same"):
        ef.contextual_mapping(network, [[[0], [0.5]], [[0.5], [0]]])
    with pytest.raises(ValueError, match=r"shape \(2, 1\)"):
        ef.contextual_mapping(network, [[0], [1]])
    with pytest.raises(ValueError, match="ids of shape"):
        ef.contextual_mapping(lambda x: x, PAIRS)
    bare = ef.Network(network.architecture, network.stages)
    with pytest.raises(ValueError, match="says nothing about its construction"):
        ef.contextual_mapping(bare, PAIRS)
