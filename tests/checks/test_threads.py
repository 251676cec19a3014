"""Small modules are checked with one thread, and nothing is left changed."""

import pytest
import torch
from torch import Tensor, nn

from everyformer.checks import threads
from everyformer.checks.subject import Subject


class Scaling(nn.Module):
    """Scales its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def seen_by(module: Scaling) -> set[int]:
    found: set[int] = set()
    handle = module.register_forward_pre_hook(
        lambda *_: found.add(torch.get_num_threads())  # pyright: ignore[reportUnknownLambdaType]
    )
    subject = Subject.of(module, 3, 4)
    found.clear()
    with threads.threads_for(subject):
        module(torch.zeros(1, 3, 4))
    handle.remove()
    return found


def test_one_thread_for_small_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert seen_by(Scaling()) == {1}
        monkeypatch.setattr(threads, "SMALL", 3)
        assert seen_by(Scaling()) == {2}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
