"""Modules that are not ready to be checked are refused in a sentence."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from everyformer.checks.subject import Subject
from everyformer.errors import InputError

N = D = 4


def test_weights_that_no_run_has_made_yet() -> None:
    module = nn.Sequential(nn.Linear(D, D), nn.LazyLinear(D))
    with pytest.raises(InputError, match=r"1\.weight has no numbers yet.*Run it once"):
        Subject.of(module, N, D)


def test_it_is_checked_after_a_run() -> None:
    module = nn.Sequential(nn.Linear(D, D), nn.LazyLinear(D))
    module(torch.zeros(1, N, D))
    assert Subject.of(module, N, D).followed.obstacle == ""


class Strict(nn.Module):
    """Attributes that it has not are errors of another kind."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


def test_attributes_that_are_not_there_may_raise_anything() -> None:
    with pytest.raises(InputError, match="Strict"):
        Subject.of(Strict(), N, D)
