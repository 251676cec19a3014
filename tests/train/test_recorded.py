"""Functions as graphs, on a CPU that replays what it has run; test_gpu.py has real ones."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import pytest
import torch
from tests.train.replaying import replaying
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.ops.captured import is_captured
from everyformer.train.recorded import WARM_UP, Recorded


def learner() -> tuple[nn.Module, Callable[..., dict[str, Tensor]]]:
    """A model and an update of it, which gives its loss and what it was given."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def update(x: Tensor, *, target: Tensor, power: int = 2) -> dict[str, Tensor]:
        optimiser.zero_grad(set_to_none=True)
        loss = (model(x) - target).abs().pow(power).mean()
        loss.backward()
        optimiser.step()
        return {"loss": loss, "sum": x.sum()}

    return model, update


def batches(number: int, length: int = 4) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(number)
    draw = (torch.randn(2, length, 4, generator=generator) for _ in range(number))
    return [(x[0, :, :3], x[1, :, :1]) for x in draw]


def test_replayed_updates_are_those_of_python() -> None:
    """New numbers at each call, a momentum, several tensors that come back."""
    plain_model, plain = learner()
    model, update = learner()
    with replaying() as graphs:
        step = Recorded(update)
        for number, (x, target) in enumerate(batches(8)):
            expected, found = plain(x, target=target), step(x, target=target)
            torch.testing.assert_close(found["loss"], expected["loss"].detach())
            torch.testing.assert_close(found["sum"], x.sum())
            assert step.graphs == (number >= WARM_UP)
    assert [graph.replays for graph in graphs] == [8 - WARM_UP]
    for weight, expected in zip(model.parameters(), plain_model.parameters(), strict=True):
        torch.testing.assert_close(weight, expected)


def test_every_shape_and_every_other_argument_has_its_graph() -> None:
    _, plain = learner()
    _, update = learner()
    calls: list[tuple[int, dict[str, Any]]] = [(4, {}), (5, {}), (4, {"power": 4})]
    with replaying() as graphs:
        step = Recorded(update)
        for _ in range(WARM_UP + 2):
            for length, more in calls:
                ((x, target),) = batches(1, length)
                expected = plain(x, target=target, **more)["loss"].detach()
                torch.testing.assert_close(step(x, target=target, **more)["loss"], expected)
        assert step.graphs == len(calls)
        assert [graph.replays for graph in graphs] == [2] * len(calls)


def double(x: Tensor) -> Tensor:
    return 2 * x


def test_the_call_before_goes_the_way_of_the_recorded_one() -> None:
    """So that what is compiled has met all branches before; nothing compiles in a graph."""
    ways: list[bool] = []

    def found(x: Tensor) -> Tensor:
        ways.append(is_captured(x))
        return 2 * x

    with replaying():
        call = Recorded(found)
        for _ in range(WARM_UP + 2):
            call(torch.ones(2))
        assert not is_captured(torch.ones(2))
    assert ways == [*[False] * (WARM_UP - 1), True, True]


def test_other_threads_hear_what_torch_says() -> None:
    """While one thread goes as if captured, another replays and gets results of its own."""
    x, total = torch.ones(2), torch.zeros(2)
    within, done = Event(), Event()

    def add(x: Tensor) -> Tensor:
        return total.add_(x)

    def waits(x: Tensor) -> Tensor:
        if is_captured(x):
            within.set()
            assert done.wait(30)
        return 2 * x

    with replaying() as graphs:
        mine, other = Recorded(add), Recorded(waits)
        for _ in range(WARM_UP - 1):
            mine(x)
            other(x)
        last = Thread(target=other, args=(x,))
        last.start()
        assert within.wait(30)
        assert torch.cuda.is_current_stream_capturing() is False
        found = [mine(x) for _ in range(3)]
        done.set()
        last.join()
        assert [float(y[0]) for y in found] == [3.0, 4.0, 5.0]
        assert [graph.replays for graph in graphs] == [2]


@pytest.mark.parametrize("ends", [True, False])
def test_a_recording_that_breaks_off_says_why(ends: bool) -> None:
    """Its own reason, whatever is handled around it and however the capture ends."""
    error = torch.AcceleratorError("CUDA error: unjoined work")
    calls: list[int] = []

    def caused(x: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > WARM_UP:
            raise ValueError("no batch") from OSError("full")
        return 2 * x

    class Broken(nullcontext[None]):
        def __exit__(self, *_: object) -> None:
            raise error

    def broken(*_: Any, **__: Any) -> Broken:
        return Broken()

    with replaying():
        for function in (double, caused) if ends else (caused,):
            call = Recorded(function)
            for _ in range(WARM_UP):
                call(torch.ones(2))
            with pytest.MonkeyPatch.context() as patch:
                if ends:
                    patch.setattr(torch.cuda, "graph", broken)
                wanted = ValueError if function is caused else torch.AcceleratorError
                try:
                    raise KeyError("of the caller")
                except KeyError:
                    with pytest.raises(wanted) as found:
                        call(torch.ones(2))
                cause = OSError if function is caused else type(None)
                assert type(found.value.__cause__) is cause
            assert not torch.cuda.is_current_stream_capturing()


def test_a_result_outlives_the_next_call() -> None:
    with replaying():
        doubled = Recorded(double)
        found = [doubled(torch.full((2,), float(number))) for number in range(WARM_UP + 3)]
    assert [float(x[0]) for x in found] == [2.0 * n for n in range(WARM_UP + 3)]


def test_results_are_detached_from_the_first_call_on() -> None:
    weight = torch.ones(2, requires_grad=True)

    def product(x: Tensor) -> Tensor:
        return weight * x

    with replaying():
        call = Recorded(product)
        assert [call(torch.ones(2)).requires_grad for _ in range(5)] == [False] * 5


def test_without_a_gpu_it_runs_as_it_is() -> None:
    model, update = learner()
    before = [weight.clone() for weight in model.parameters()]
    step = Recorded(update)
    losses = [float(step(x, target=target)["loss"]) for x, target in batches(1) * 40]
    assert step.graphs == 0
    assert losses[-1] < losses[0] / 2
    assert not torch.equal(before[0], next(model.parameters()))


@dataclass
class Held:
    """What no replay can copy."""

    loss: Tensor


def test_what_a_replay_would_lose_is_refused() -> None:
    with pytest.raises(InputError, match="requires a gradient"):
        Recorded(double)(torch.ones(2, requires_grad=True))

    def held(x: Tensor) -> Held:
        return Held(x + 1)

    with replaying():
        call = Recorded(held)
        for _ in range(WARM_UP):
            call(torch.ones(2))
        with pytest.raises(InputError, match="gives a Held"):
            call(torch.ones(2))
