"""On a GPU: the same data, compiled half precision, and the same bits again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.runs import losses, tiny_run

from everyformer.data.randomness import random_integers

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


@pytest.mark.parametrize("more", [{}, {"compile": True, "precision": "bf16"}])
def test_recorded_updates_are_those_of_python(more: dict[str, Any]) -> None:
    """Dropout, rates of the warm-up and sequences change within the graph."""
    settings: dict[str, Any] = {"dim": 64, "dropout": 0.1, "accumulation": 2} | more
    plain, recorded = (tiny_run(record=record, **settings) for record in (False, True))
    assert losses(recorded.curve) == pytest.approx(losses(plain.curve), rel=1e-4)


def test_a_recorded_run_resumes_exactly(tmp_path: Path) -> None:
    whole = tiny_run(dim=64, dropout=0.1, record=True)
    tiny_run(tmp_path, dim=64, dropout=0.1, record=True, deadline=0.0)
    rest = tiny_run(tmp_path, dim=64, dropout=0.1, record=True, resume=True)
    assert losses(rest.curve) == losses(whole.curve)
    assert rest.steps > 10  # of which the stopped run made 10
