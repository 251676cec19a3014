"""Modules that go by errors nobody sees: Python drops them, or takes them for an answer.

Such errors come where numbers are large, which those of no probe are; an export has none.
"""

import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import pytest
import torch
from torch import Tensor, nn

from everyformer.checks.following.walk import Followed
from everyformer.checks.subject import Subject

N = D = 4
Forward = Callable[[Any, Tensor], Tensor]


class Made(nn.Module):
    """A module of one function, with a linear map and numbers of places."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.made = forward
        self.linear = nn.Linear(D, D)
        self.places = nn.Buffer(torch.arange(N, dtype=torch.float64).reshape(1, N, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.made(self, x)


def followed(forward: Forward) -> Followed:
    return Subject.of(Made(forward), N, D).followed


def fails(x: Tensor) -> Tensor:
    """An error where a number is large."""
    return torch.linalg.cholesky(torch.eye(N, dtype=x.dtype) * (1e6 - x.square().sum()))


class Asked:
    """Python takes some errors for an answer, and drops those of some functions."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.done: list[bool] = []

    @property
    def there(self) -> bool:
        try:
            fails(self.x)
        except RuntimeError as error:
            raise AttributeError("there") from error
        return True

    def __iter__(self) -> "Asked":
        return self

    def __next__(self) -> bool:
        try:
            fails(self.x)
        except RuntimeError:
            raise StopIteration from None
        return True


class MissingError(IndexError):
    pass


class Items:
    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    def __getitem__(self, key: int) -> bool:
        try:
            fails(self.asked.x)
        except RuntimeError as error:
            raise MissingError from error
        return True


class Ends:
    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    def __del__(self) -> None:
        fails(self.asked.x)
        self.asked.done.append(True)


class Thing:
    pass


def note_end(asked: Asked, *_: object) -> None:
    fails(asked.x)
    asked.done.append(True)


def by_attribute(asked: Asked) -> bool:
    return getattr(asked, "there", False)


def by_iterator(asked: Asked) -> bool:
    return next(asked, False)


def by_item(asked: Asked) -> bool:
    return True in Items(asked)  # pyright: ignore[reportOperatorIssue]


def by_end(asked: Asked) -> bool:
    ends = Ends(asked)
    del ends
    return bool(asked.done)


def by_weak_reference(asked: Asked) -> bool:
    thing = Thing()
    held = weakref.ref(thing, partial(note_end, asked))
    del thing
    return bool(asked.done) and held() is None


def by_finalizer(asked: Asked) -> bool:
    thing = Thing()
    weakref.finalize(thing, note_end, asked)
    del thing
    return bool(asked.done)


def by_future(asked: Asked) -> bool:
    """Errors of what is called when it is done are logged."""
    future = Future[int]()
    future.add_done_callback(partial(note_end, asked))
    future.set_result(0)
    return bool(asked.done)


def stops(*_: object) -> bool:
    return True


class Stops:
    def __call__(self, *_: object) -> bool:
        return True


class Manager:
    """A function of another name ends what stands in a `with` statement."""

    def __enter__(self) -> None:
        pass

    __exit__ = stops


class OtherManager(Manager):
    __exit__ = Stops()  # type: ignore[assignment]


class Denies(Manager):
    """What it returns is no constant."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    def __exit__(self, *_: object) -> bool:
        return not self.asked.done


class Calls(Manager):
    def stops(self) -> bool:
        return True

    def __exit__(self, *_: object) -> bool:
        return self.stops()


class Looks(Manager):
    """It returns nothing, and has caught an error."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    def __exit__(self, *_: object) -> None:  # type: ignore[override]
        try:
            note_end(self.asked)
        except RuntimeError:
            self.asked.done.clear()


def by_manager(asked: Asked) -> bool:
    with Manager():
        note_end(asked)
    return bool(asked.done)


def by_other_manager(asked: Asked) -> bool:
    with OtherManager():
        note_end(asked)
    return bool(asked.done)


def by_what_is_not(asked: Asked) -> bool:
    with Denies(asked):
        note_end(asked)
    return bool(asked.done)


def by_a_call(asked: Asked) -> bool:
    with Calls():
        note_end(asked)
    return bool(asked.done)


def by_an_exit_that_looks(asked: Asked) -> bool:
    with Looks(asked):
        pass
    return bool(asked.done)


def by_generator(asked: Asked) -> bool:
    """What it does in the end, when nobody has it any more, may fail."""

    def once() -> Iterator[int]:
        try:
            yield 0
        finally:
            note_end(asked)

    numbers = once()
    next(numbers)
    del numbers
    return bool(asked.done)


DROPPING = (
    by_what_is_not, by_a_call, by_manager, by_other_manager, by_an_exit_that_looks,
    by_generator, by_attribute, by_iterator, by_item, by_end, by_weak_reference,
    by_finalizer, by_future,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("ask", DROPPING)
def test_errors_that_are_taken_for_an_answer_are_seen(ask: Callable[..., bool]) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.linear(x)
        return y if ask(Asked(x)) else y + m.places

    found = followed(forward)
    assert found.output is None
    assert "errors" in found.obstacle


def honest_error(m: Any, x: Tensor) -> Tensor:
    """It says more of an error, and raises some that have to do with no other."""
    if getattr(m, "missing", None) is not None:
        raise AttributeError("missing")
    try:
        return m.linear(x)
    except (KeyError, RuntimeError) as error:
        raise ValueError("not for these") from error


@contextmanager
def tidily() -> Generator[None]:
    try:
        yield
    finally:
        torch.zeros(1)


def honest_manager(m: Any, x: Tensor) -> Tensor:
    with tidily():
        return m.linear(x) + sum(k for k in range(3))


def test_a_generator_that_is_a_manager_is_followed() -> None:
    assert followed(honest_manager).obstacle == ""


T = TypeVar("T")


class Pair(Generic[T]):
    """Python's library makes it, and catches an error of what it does afterwards."""

    def __init__(self, first: T) -> None:
        self.first = first


def honest_pair(m: Any, x: Tensor) -> Tensor:
    return Pair[Tensor](m.linear(x)).first


def test_errors_that_python_catches_elsewhere_are_others() -> None:
    assert followed(honest_pair).obstacle == ""


def test_an_error_that_is_raised_on_is_followed() -> None:
    assert followed(honest_error).obstacle == ""
