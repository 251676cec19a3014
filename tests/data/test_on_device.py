"""Batches are made on the device: nothing is read back, no shape depends on the data."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from everyformer.data.batch import FILLING, Batch, Draw
from everyformer.data.nli import Pairs
from everyformer.data.packs.excerpt import excerpt
from everyformer.data.packs.translation_excerpt import translation_excerpt
from everyformer.data.squad.task import Questions
from everyformer.data.translation import Translations
from everyformer.data.windows import MaskedWindows

CPU = torch.device("cpu")
WAITING = {
    "_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique_dim",
    "_unique2", "lift_fresh", "item", "bincount", "repeat_interleave",
}  # fmt: skip
"""Operations that a GPU answers to the host, have a shape that depends on data, or copy."""


class Watched(TorchDispatchMode):
    """Refuses what would wait for a device, or could not be recorded."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        masks = name == "index" and any(
            one is not None and one.dtype == torch.bool for one in args[1]
        )
        if name in WAITING or masks:
            msg = f"{name} would wait for the device"
            raise AssertionError(msg)
        return func(*args, **(kwargs or {}))


TASKS: dict[str, Callable[[], Any]] = {
    "windows": lambda: MaskedWindows(
        excerpt("enwiki-wp"), 32, 0, evaluated=20, longer=(2, 64, 4)
    ),
    "pairs": lambda: Pairs(excerpt("nli"), 0, held_out=True),
    "masked premises": lambda: Pairs(excerpt("nli"), 0, held_out=True, premise_masked=True),
    "questions": lambda: Questions(
        excerpt("squad"), 0, length=48, stride=16, lengths=(48,)
    ),
}


def test_nothing_waits_for_the_device_in_a_batch_of_translations() -> None:
    """Its batches count tokens: 512 are 4 pairs of 64 or 8 of 32."""
    task = Translations(translation_excerpt(), 0, lengths=(32, 64))
    for step in range(2):
        draw = task.draw(step, 512, 0, 2, CPU)
        task.batch("train", draw)  # copies what stays there
        with Watched():
            batch = task.batch("train", draw)
        assert batch.tokens.shape == (256 // (2 * draw.length), draw.length)


@pytest.mark.parametrize("name", TASKS)
def test_nothing_waits_for_the_device(name: str) -> None:
    task = TASKS[name]()
    for step in range(3):
        draw = task.draw(step, 8, 0, 2, CPU)
        task.batch("train", draw)  # copies what stays there
        with Watched():
            batch = task.batch("train", draw)
        assert len(batch.tokens) == len(draw.numbers) > 0
        assert batch.tokens.shape[1] == draw.length
    for draw in task.evaluation("test", 8, 1, 2, CPU):
        with Watched():
            task.batch("test", draw)


def test_the_watch_sees_what_waits() -> None:
    x = torch.arange(4)
    for waits in (lambda: x.max().item(), lambda: x[x > 1], lambda: torch.tensor([1])):
        with Watched(), pytest.raises(AssertionError, match="would wait"):
            waits()


@pytest.mark.parametrize("name", TASKS)
def test_filling_is_harmless(name: str) -> None:
    """Weight 0, and tokens that a model can read: not a row of padding alone."""
    task = TASKS[name]()
    draw = task.draw(0, 4, 0, 1, CPU)
    numbers = draw.numbers.clone()
    numbers[1:3] = FILLING
    whole, some = (
        task.batch("train", Draw(n, draw.length)) for n in (draw.numbers, numbers)
    )
    assert some.weights.reshape(4, -1).sum(1).bool().tolist() == [True, False, False, True]
    assert torch.equal(whole.tokens[[0, 3]], some.tokens[[0, 3]])
    assert some.padding is None or not some.padding.all(1).any()
    kinds = [(one.dtype, one.shape) for one in some if one is not None]
    assert kinds == [(one.dtype, one.shape) for one in whole if one is not None]


@pytest.mark.gpu
@pytest.mark.parametrize("name", TASKS)
def test_a_batch_is_recorded_and_equals_that_of_the_cpu(name: str) -> None:
    task, device = TASKS[name](), torch.device("cuda")
    draws = [task.draw(step, 8, 0, 1, device) for step in (0, 1)]
    length = draws[0].length
    draws = [draw for draw in draws if draw.length == length]
    place = draws[0].numbers.clone()
    task.batch("train", Draw(place, length))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found: Batch = task.batch("train", Draw(place, length))
    for draw in draws:
        place.copy_(draw.numbers)
        graph.replay()
        true = task.batch("train", Draw(draw.numbers.cpu(), length))
        for one, other in zip(found, true, strict=True):
            assert (one is None) == (other is None)
            if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
                assert torch.equal(one.cpu(), other)
