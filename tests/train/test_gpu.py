"""On a GPU: the same data, compiled half precision, and the same bits again."""

import pytest
import torch
from tests.train.runs import losses, tiny_run

from everyformer.train.randomness import random_integers

pytestmark = pytest.mark.gpu


def test_data_is_that_of_the_cpu() -> None:
    numbers = torch.arange(1000)
    here = random_integers(10_000, 1, "train", numbers, 33)
    there = random_integers(10_000, 1, "train", numbers.cuda(), 33)
    assert torch.equal(there.cpu(), here)


@pytest.mark.parametrize("compiles", [False, True])
def test_half_precision_is_near(compiles: bool) -> None:
    whole = losses(tiny_run(dim=64).curve)
    half = losses(tiny_run(dim=64, precision="bf16", compile=compiles).curve)
    assert half == pytest.approx(whole, abs=0.05)


def test_two_runs_have_the_same_bits() -> None:
    one, two = (tiny_run(dim=64, precision="bf16", dropout=0.1) for _ in range(2))
    assert losses(one.curve) == losses(two.curve)
