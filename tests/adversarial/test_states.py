"""Modules that go by the state of torch or of Python: in another one they are others."""

import cProfile
import os
import random
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode,  # pyright: ignore[reportPrivateUsage]
)

from everyformer.checks.following.walk import Followed
from everyformer.checks.subject import Subject

N, D = 4, 3

ASKED: dict[str, Callable[[Any], object]] = {
    "autocast": lambda _: torch.is_autocast_enabled("cpu"),
    "the type of autocast": lambda _: torch.get_autocast_dtype("cpu") == torch.float16,
    "the default dtype": lambda _: torch.get_default_dtype() == torch.float64,
    "who profiles it": lambda _: sys.getprofile() == 5,
    "the operations' observer": lambda _: isinstance(_get_current_dispatch_mode(), Path),
    "how many observe": lambda _: torch._C._len_torch_dispatch_stack() > 99,  # pyright: ignore[reportPrivateUsage]
    "threads": lambda _: torch.get_num_threads() > 10**6,
    "the seed": lambda _: torch.initial_seed() == 12345,
    "inference mode": lambda _: torch.is_inference_mode_enabled(),
    "deterministic algorithms": lambda _: torch.are_deterministic_algorithms_enabled(),
    "a variable of the shell": lambda _: os.getenv("EVERYFORMER_NOT_SET"),
    "a file": lambda _: Path("not/there").exists(),
    "chance": lambda _: random.randint(0, 2**60) == 7,
    "a new number": lambda _: uuid.uuid4().int == 0,
    "the thread": lambda _: threading.current_thread().name == "another",
}
"""What is asked by the code of a module, itself or by functions of Python."""

SEEN: dict[str, tuple[Callable[[Any], object], str]] = {
    "a type that is made": (lambda _: torch.zeros(1).dtype == torch.float64, "dtype"),
    "an input of inference": (lambda m: m.x.is_inference(), "inference"),
    "a frozen weight": (lambda m: not m.linear.weight.requires_grad, "which of its"),
    "a free one": (lambda m: m.frozen.requires_grad, "which of its weights"),
    "a gradient": (lambda m: m.linear.weight.grad is not None, "which of its weights"),
}
"""What is seen in tensors, which no call asks for."""


class Turning(nn.Module):
    """Turns the tokens round in a state that a check does not have by itself."""

    def __init__(self, asks: Callable[[Any], object]) -> None:
        super().__init__()
        self.asks = asks
        self.linear = nn.Linear(D, D)
        self.frozen = nn.Parameter(torch.zeros(D), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        turned = bool(self.asks(self))
        del self.x
        return self.linear(x.flip(1) if turned else x)


def followed(asks: Callable[[Any], object]) -> Followed:
    return Subject.of(Turning(asks), N, D).followed


@pytest.mark.parametrize("name", ASKED)
def test_a_state_that_is_asked_for_proves_nothing(name: str) -> None:
    assert followed(ASKED[name]).obstacle.startswith("it asks")


@pytest.mark.parametrize("name", SEEN)
def test_a_state_that_is_seen_proves_nothing(name: str) -> None:
    asks, why = SEEN[name]
    found = followed(asks).obstacle
    assert found.startswith("it goes by")
    assert why in found


@pytest.mark.parametrize("profiled", [False, True])
def test_a_module_that_goes_by_none_is_followed(profiled: bool) -> None:
    """Also where a program is profiled, whose profiler goes on afterwards."""
    before = torch.get_default_dtype()
    profile = cProfile.Profile()
    if profiled:
        profile.enable()
    try:
        found = followed(lambda m: len(str(m.linear.weight.dtype)) > 10**3)
        len("seen")
    finally:
        profile.disable()
    assert found.obstacle == ""
    assert torch.get_default_dtype() is before
    last = [entry.code for entry in profile.getstats() if "len" in str(entry.code)]
    assert bool(last) is profiled
