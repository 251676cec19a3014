"""Parts so small that a sum over pieces of a region is below the numbers of float64."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import everyformer as ef
from everyformer.certify.proof import Proof
from everyformer.certify.prove import cells_of, prove
from everyformer.certify.weights import read_weights

SLOPE = 1e-160


def small(x: np.ndarray) -> np.ndarray:
    return SLOPE * x


def still(network: ef.Network) -> None:
    """Make it 0 everywhere: there are no ramps, whose share would hide what is lost."""
    for stage in network.stages:
        stack = stage.feed_forward
        assert stack is not None
        for held in (stack.W_2, stack.b_2):
            held.setflags(write=True)
            held[...] = 0.0


def bounds(part: tuple[float, float], K: int, p: int, folder: Path) -> Proof:
    """What is proved of f on one interval and g = 0, by the weights."""
    target = ef.Target(small, 1, 1, region=[[[part]]], domain=[(-1, 1)])
    method = ef.Averaging(positional=True)
    network = ef.construct(target, grid=K, method=method).network
    still(network)
    network.save(folder / "network.safetensors")
    weights = read_weights(folder / "network.safetensors")
    f, region = target.expression, target.region
    assert f is not None
    cells = cells_of(weights, target.domain, K, f, equivariant=False, region=region)
    return prove(weights, cells, f, Fraction(p))


@pytest.mark.parametrize("p", [1, 2, 4])
@pytest.mark.parametrize(("part", "K"), [((0.0, 1e-40), 2), ((-1e-200, 1e-200), 3)])
def test_what_vanishes_in_float64_is_no_bound_of_0(
    part: tuple[float, float], K: int, p: int, tmp_path: Path
) -> None:
    """f(x) = 1e-160 x, g = 0: |f|^p times the share of the piece, or |f| itself, is 0."""
    proof = bounds(part, K, p, tmp_path)
    assert proof.real is not None
    low, high = (abs(Fraction(end)) for end in part)
    # d_p^p = SLOPE^p (low^(p + 1) + high^(p + 1)) / (p + 1), exactly
    true = Fraction(SLOPE) ** p * (low ** (p + 1) + high ** (p + 1)) / (p + 1)
    assert proof.real.value**p >= true > 0
    assert proof.lower <= true
