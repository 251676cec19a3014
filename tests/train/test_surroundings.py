"""What a recorded function works on besides its arguments, and what it cannot be given."""

import copy
import sys
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.train.replaying import replaying
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers import KeyCache, RelativeAttention
from everyformer.train.recorded import WARM_UP, Recorded

Step = Callable[[Tensor], Tensor]
CALLS = 2 * WARM_UP + 4


class Descent(torch.optim.Optimizer):
    """Reads its rate where it lies, as fused optimisers do on a GPU."""

    def __init__(self, parameters: Any, lr: float) -> None:
        """At the same rate for all."""
        super().__init__(parameters, {"lr": torch.tensor(lr)})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Down the gradients."""
        for group in self.param_groups:
            for weight in group["params"]:
                weight.sub_(group["lr"] * weight.grad)


class Learner:
    """A model, an optimiser, and pieces of an update."""

    def __init__(self, **settings: Any) -> None:
        """The same numbers each time."""
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)).eval()
        kind = settings.pop("kind", torch.optim.SGD)
        self.optimiser = kind(self.model.parameters(), **{"lr": 0.05} | settings)
        self.rates = torch.optim.lr_scheduler.ExponentialLR(self.optimiser, 0.5)

    def add(self, x: Tensor) -> Tensor:
        """Add gradients to those that are there."""
        loss = self.model(x).square().mean()
        loss.backward()
        return loss

    def update(self, x: Tensor) -> Tensor:
        """All of an update."""
        self.optimiser.zero_grad()
        loss = self.add(x)
        self.optimiser.step()
        return loss

    def make_gradients(self, x: Tensor) -> Tensor:
        """Gradients without an update."""
        self.optimiser.zero_grad()
        return self.add(x)


def draws(lengths: Sequence[int] = (4,)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(lengths[number % len(lengths)], 3, generator=generator)
        for number in range(CALLS * len(lengths))
    ]


How = Callable[[Learner, Step, Tensor, int], Tensor]
"""A call of a step, and what a learner does around it; its number."""


def compare(
    how: How,
    what: Callable[[Learner], Step],
    lengths: Sequence[int] = (4,),
    **settings: Any,
) -> int:
    """A loop with a function, and with the same recorded; how many graphs there were."""
    plain, other = Learner(**settings), Learner(**settings)
    with replaying() as graphs:
        step = Recorded(what(other))
        for number, x in enumerate(draws(lengths)):
            expected = how(plain, what(plain), x, number).detach()
            torch.testing.assert_close(how(other, step, x, number), expected)
            for own, theirs in zip(
                other.model.parameters(), plain.model.parameters(), strict=True
            ):
                torch.testing.assert_close(own, theirs, msg=f"after call {number}")
    assert sum(graph.replays for graph in graphs) > 0
    return len(graphs)


def loads_weights(learner: Learner, step: Step, x: Tensor, number: int) -> Tensor:
    if number == WARM_UP + 2:
        state = {key: value / 2 for key, value in learner.model.state_dict().items()}
        learner.model.load_state_dict(state, assign=True)
        learner.optimiser.param_groups[0]["params"] = list(learner.model.parameters())
    return step(x)


def moves_weights(learner: Learner, step: Step, x: Tensor, number: int) -> Tensor:
    if number == WARM_UP + 2:
        for weight in learner.model.parameters():
            weight.data = weight.data / 2
    return step(x)


def loads_a_state(learner: Learner, step: Step, x: Tensor, number: int) -> Tensor:
    if number == WARM_UP + 2:
        state = learner.optimiser.state_dict()
        for entry in state["state"].values():
            entry["momentum_buffer"] = 2 * entry["momentum_buffer"]
        learner.optimiser.load_state_dict(state)
    return step(x)


@pytest.mark.parametrize("how", [loads_weights, moves_weights, loads_a_state])
def test_what_was_moved_is_recorded_anew(how: Any) -> None:
    assert compare(how, lambda learner: learner.update, momentum=0.9) == 2


def test_what_a_function_names_is_found() -> None:
    """Around it, in a partial, in a function that it calls, and itself."""

    def called(weight: list[Tensor], x: Tensor) -> Tensor:
        return weight[0] * x

    def around(weight: list[Tensor]) -> Step:
        def inner(x: Tensor) -> Tensor:
            return called(weight, x)

        return lambda x: inner(x)

    def beside(weight: list[Tensor]) -> Step:
        return partial(called, weight)

    for make in (around, beside):
        weight = [torch.ones(2)]
        with replaying():
            step = Recorded(make(weight))
            for number in range(CALLS):
                if number == WARM_UP + 2:
                    weight[0] = torch.full((2,), 3.0)
                assert float(step(torch.ones(2))[0]) == (1 if number < WARM_UP + 2 else 3)


@pytest.mark.parametrize("lengths", [(4,), (4, 5)])
@pytest.mark.parametrize("inside", [False, True])
def test_gradients_that_are_left_are_found(inside: bool, lengths: Sequence[int]) -> None:
    """By an optimiser outside, whoever made them None before."""

    def how(learner: Learner, step: Step, x: Tensor, number: int) -> Tensor:
        if not inside:
            learner.optimiser.zero_grad(set_to_none=True)
        loss = step(x)
        learner.optimiser.step()
        return loss

    compare(how, lambda x: x.make_gradients if inside else x.add, lengths)


def test_gradients_add_up_where_they_are_kept() -> None:
    """Over two calls, then zeroed; not where they come and go."""

    def every_other(to_none: bool) -> How:
        def how(learner: Learner, step: Step, x: Tensor, number: int) -> Tensor:
            loss = step(x)
            if number % 2:
                learner.optimiser.step()
                learner.optimiser.zero_grad(set_to_none=to_none)
            return loss

        return how

    compare(every_other(False), lambda learner: learner.add)
    with pytest.raises(InputError, match=r"another tensor when.*set_to_none=False"):
        compare(every_other(True), lambda learner: learner.add)


@pytest.mark.parametrize("number_of_call", range(CALLS))
def test_gradients_that_are_cleared_by_chance_do_not_matter(number_of_call: int) -> None:
    """To a function that clears them itself."""

    def how(learner: Learner, step: Step, x: Tensor, number: int) -> Tensor:
        if number == number_of_call:
            learner.optimiser.zero_grad(set_to_none=True)
        return step(x)

    compare(how, lambda learner: learner.update)


def test_gradients_that_others_leave_do_not_matter() -> None:
    """A loss without a gradient, between updates that are not recorded."""

    def how(learner: Learner, step: Step, x: Tensor, number: int) -> Tensor:
        learner.update(x)
        return step(x)

    def of(learner: Learner) -> Step:
        @torch.no_grad()
        def loss(x: Tensor) -> Tensor:
            return learner.model(x).square().mean()

        return loss

    compare(how, of)


def test_a_rate_that_a_graph_does_not_read_is_refused() -> None:
    def how(learner: Learner, step: Step, x: Tensor, number: int) -> Tensor:
        loss = step(x)
        learner.rates.step()
        return loss

    compare(how, lambda x: x.update, kind=Descent)
    with pytest.raises(InputError, match=r"^lr of SGD is 0.0031.*was 0.00625 when.*tensor"):
        compare(how, lambda x: x.update)


def test_training_and_evaluation_have_their_graphs() -> None:
    dropped = nn.Dropout(1.0)
    with replaying():
        step = Recorded(dropped)
        for training in [False, True] * CALLS:
            dropped.train(training)
            assert float(step(torch.ones(()))) == (not training)
        assert step.graphs == 2


def test_weights_that_get_no_gradient_any_more_stay() -> None:
    def how(learner: Learner, step: Step, x: Tensor, number: int) -> Tensor:
        learner.model[0].requires_grad_(number % 3 != 0)
        return step(x)

    assert compare(how, lambda learner: learner.update, (4, 4), momentum=0.9) == 2


def test_threads_take_turns() -> None:
    wrong: list[float] = []

    def call(step: Step, given: float) -> None:
        found = [float(step(torch.tensor(given))) for _ in range(50)]
        wrong.extend(x for x in found if x != 2 * given)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with replaying():
            step = Recorded(double)
            threads = [Thread(target=call, args=(step, 1.0 * n)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


def test_a_copy_begins_anew() -> None:
    model = nn.Linear(1, 1)
    with replaying():
        step = Recorded(model)
        for x in torch.ones(CALLS, 1):
            step(x)
        other = copy.deepcopy(step)
        assert (step.graphs, other.graphs) == (1, 0)
        nn.init.zeros_(model.weight)
        assert not torch.equal(step(torch.ones(1)), other(torch.ones(1)))


def test_autocast_from_outside_leaves_no_rounded_weights() -> None:
    """It keeps them until it is left, beyond an update of the weights."""
    plain, other = Learner(), Learner()
    with replaying() as graphs, torch.autocast("cpu", torch.bfloat16):
        step = Recorded(other.update)
        for x in draws():
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                expected = plain.update(x).detach()
            torch.testing.assert_close(step(x), expected)
    assert [graph.replays for graph in graphs] == [CALLS - WARM_UP]


def test_buffers_that_are_replaced_are_refused() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.5 * self.mean + x.mean()
            return self.mean

    with replaying():
        step, (x, *_) = Recorded(Mean()), draws()
        for _ in range(WARM_UP - 1):
            step(x)
        with pytest.raises(InputError, match="in the places of parameters or buffers"):
            step(x)


def test_what_is_written_into_an_argument_is_refused() -> None:
    def doubled(x: Tensor) -> Tensor:
        return x.mul_(2)

    with replaying(), pytest.raises(InputError, match=r"writes into its argument.*\(2,\)"):
        Recorded(doubled)(torch.ones(2))


def test_results_of_the_first_calls_stay_as_they_are() -> None:
    total = torch.zeros(2)

    def add(x: Tensor) -> Tensor:
        return total.add_(x)

    with replaying():
        step = Recorded(add)
        found = [step(torch.ones(2)) for _ in range(CALLS)]
    assert [float(x[0]) for x in found] == [n + 1.0 for n in range(CALLS)]


def test_tensors_on_two_devices_are_refused() -> None:
    def add(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    with (
        replaying(),
        pytest.raises(InputError, match="is on meta and the graphs are on cp"),
    ):
        Recorded(add)(torch.ones(2), torch.ones(2, device="meta"))
    with replaying():
        step = Recorded(add)
        step(torch.ones(2), torch.ones(2))
        with pytest.raises(InputError, match="Move all tensors to cpu"):
            step(*[torch.ones(2, device="meta")] * 2)


class Settings:
    """Known by itself alone, with a tensor in it."""

    def __init__(self) -> None:
        """Nobody sees when it is replaced."""
        self.scale = torch.ones(())


def cache_of_keys() -> KeyCache:
    layer, cache = RelativeAttention(4, 2, causal=True, max_len=4), KeyCache()
    layer(torch.ones(1, 2, 4), cache=cache)
    return cache


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (torch.ones(2).numpy(), "is a ndarray, which cannot be hashed"),
        ({1}, "is a set, which cannot be hashed"),
        (Settings(), "is a Settings, whose tensors no replay"),
        (cache_of_keys(), "is a KeyCache, whose tensors no replay"),
    ],
)
def test_arguments_that_no_graph_is_found_by(given: Any, why: str) -> None:
    def first(x: Tensor, other: Any) -> Tensor:
        return x + 0

    with replaying(), pytest.raises(InputError, match=why):
        Recorded(first)(torch.ones(2), given)


def test_signs_of_zero_and_numbers_that_are_none() -> None:
    def divided(x: Tensor, by: float) -> Tensor:
        return x / by

    with replaying():
        step = Recorded(divided)
        for by in [0.0, -0.0, float("nan")] * (WARM_UP + 2):
            torch.testing.assert_close(
                step(torch.ones(1), by), torch.ones(1) / by, equal_nan=True
            )
        for _ in range(3):
            step(torch.ones(1), float("nan"))
        assert step.graphs == 3


def double(x: Tensor) -> Tensor:
    return 2 * x


def test_a_recorded_function_within_another() -> None:
    """It runs as it is within the other's graph."""
    inner = Recorded(double)

    def add(x: Tensor) -> Tensor:
        return inner(x) + 1

    with replaying():
        outer = Recorded(add)
        for number in range(CALLS):
            assert float(outer(torch.tensor(1.0 * number))) == 2 * number + 1
        assert (outer.graphs, inner.graphs) == (1, 0)


@pytest.mark.parametrize("fails", [0, WARM_UP, WARM_UP + 1])
def test_after_a_failure_all_goes_on(fails: int) -> None:
    """In a call by Python, while it is recorded; in a replay Python does not run."""
    calls = 0

    def sometimes(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == fails + 1:
            raise ValueError
        return double(x)

    with replaying(), patch.object(torch.cuda, "current_stream") as current:
        step = Recorded(sometimes)
        for number in range(CALLS):
            x = torch.tensor(1.0 * number)
            if number == fails <= WARM_UP:
                with pytest.raises(ValueError):  # noqa: PT011
                    step(x)
            else:
                assert float(step(x)) == 2 * number
            waits = current.return_value.wait_stream
            assert waits.call_count == number + 1, "for what was begun"
        assert step.graphs == 1


def test_without_a_gpu_arguments_may_be_anything() -> None:
    def more(x: Tensor, several: set[int]) -> Tensor:
        return x + len(several)

    assert float(Recorded(more)(torch.ones(()), {1})) == 2
