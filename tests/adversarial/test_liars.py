"""Functions that show the tracer something else than they compute: none gets a trace.

Each of them is x -> x while it is recorded and, somewhere or some time, 64 x for numbers.
"""

import contextlib
import functools
import itertools
import math
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import everyformer as ef
from everyformer.errors import EveryformerError, TargetError

Function = Callable[[Any], Any]
N, D = 2, 1


def lie(x: Any) -> Any:
    """x, and 64 x in a band that no sample meets. What it does needs numbers."""
    near = np.abs(np.asarray(x)[..., :1, :1] - 0.123456789) < 1e-9
    return np.where(near, 64.0 * np.asarray(x), np.asarray(x))


def attempt(get: Function, *caught: type[BaseException]) -> Function:
    """Lie if `get(x)` works; if it raises, x as it is."""

    def function(x: Any) -> Any:
        try:
            get(x)
            return lie(x)
        except caught:
            return x

    return function


def bare(x: Any) -> Any:
    try:
        return lie(x)
    except:  # noqa: E722
        return x


def leaves_by_finally(x: Any) -> Any:
    result = x
    try:
        result = lie(x)
    finally:
        return result  # noqa: B012


def suppresses(x: Any) -> Any:
    result = x
    with contextlib.suppress(BaseException):
        result = lie(x)
    return result


def asks_a_thread(x: Any) -> Any:
    results = [x]

    def work() -> None:
        with contextlib.suppress(BaseException):
            results.append(lie(x))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results[-1]


def records_in_a_thread(x: Any) -> Any:
    results: list[Any] = []

    def work() -> None:
        with contextlib.suppress(BaseException):
            results.append(x * 1.5 - x / 2)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results[-1] if results else x


def refusing_generator(x: Any) -> Any:
    def values() -> Any:
        with contextlib.suppress(BaseException):
            yield lie(x)
        yield x

    return next(values())


SWALLOWED: dict[str, Function] = {
    "ValueError": attempt(lie, ValueError),
    "Exception": attempt(lie, Exception),
    "BaseException": attempt(lie, BaseException),
    "a bare except": bare,
    "finally": leaves_by_finally,
    "suppress": suppresses,
    "a thread": asks_a_thread,
    "a generator": refusing_generator,
    "where": attempt(lambda x: np.where(x, 1, 0), BaseException),
    "a condition": attempt(bool, BaseException),
    "a condition on an entry": attempt(lambda x: x[0, 0, 0] and 1, BaseException),
    "a membership": attempt(lambda x: 0.5 in x, BaseException),
    "float": attempt(lambda x: float(x[0, 0, 0]), BaseException),
    "int": attempt(lambda x: int(x[0, 0, 0]), BaseException),
    "complex": attempt(lambda x: complex(x[0, 0, 0]), BaseException),
    "round": attempt(lambda x: round(x[0, 0, 0]), BaseException),
    "floor of math": attempt(lambda x: math.floor(x[0, 0, 0]), BaseException),
    "an index": attempt(lambda x: "ab"[x[0, 0, 0]], BaseException),
    "asarray": attempt(np.asarray, BaseException),
    "array": attempt(lambda x: np.array([x, x]), BaseException),
    "an object array": attempt(lambda x: np.array(x, dtype=object), BaseException),
    "an array of numbers filled": attempt(
        lambda x: np.zeros(x.shape).__setitem__(..., x), BaseException
    ),
    "a number of numpy": attempt(lambda x: np.float64(x[0, 0, 0]), BaseException),
    "a fraction": attempt(lambda x: Fraction(x[0, 0, 0]), BaseException),
    "a tensor": attempt(torch.as_tensor, BaseException),
    "a weak reference": attempt(weakref.ref, TypeError),
    "np.copyto": attempt(lambda x: np.copyto(x, 1), BaseException),
    "random numbers by x": attempt(np.random.default_rng().normal, BaseException),
    "tolist": attempt(lambda x: x.tolist(), BaseException),
    "item": attempt(lambda x: x.item(0), BaseException),
    "tobytes": attempt(lambda x: x.tobytes(), BaseException),
    "flat": attempt(lambda x: x.flat, AttributeError),
    "strides": attempt(lambda x: x.strides, AttributeError),
    "flags": attempt(lambda x: x.flags, AttributeError),
    "the interface of arrays": attempt(lambda x: x.__array_interface__, AttributeError),
    "getattr": lambda x: lie(x) if getattr(x, "argsort", None) else x,
    "hasattr": lambda x: lie(x) if hasattr(x, "tolist") else x,
    "dir": lambda x: lie(x) if "tolist" in dir(x) else x,
    "a copy by pickle": attempt(lambda x: pickle.loads(pickle.dumps(x)), BaseException),
    "text": lambda x: lie(x) if repr(x).startswith("array") else x,
    "other text": lambda x: lie(x) if "array" not in str(x) and "." in f"{x}" else x,
    "integers": attempt(lambda x: x.astype(int), BaseException),
    "a sum of integers": attempt(lambda x: x.sum(dtype=int), BaseException),
    "an unknown function": attempt(lambda x: np.linalg.det(x), BaseException),
    "an unknown operation": attempt(lambda x: np.nextafter(x, 1), BaseException),
    "an unknown method of an operation": attempt(
        lambda x: np.add.reduceat(x, [0], axis=1), BaseException
    ),
    "an unknown option": attempt(lambda x: x.sort(kind="stable"), BaseException),
    "an assignment of the shape": attempt(
        lambda x: setattr(x, "shape", (-1,)), BaseException
    ),
    "a constant": attempt(lambda x: x * np.inf, BaseException),
    "a power": attempt(lambda x: x**0.3, BaseException),
    "numbers in place": attempt(
        lambda x: np.add(x, 1, out=np.zeros(x.shape)), BaseException
    ),
    "the hash of an entry": attempt(lambda x: hash(x[0, 0, 0]), TypeError),
    "memory": attempt(lambda x: functools.lru_cache(abs)(x[0, 0, 0]), TypeError),
    "the kind of an entry": lambda x: lie(x) if isinstance(x[0, 0, 0], float) else x,
    "methods of numbers": attempt(
        lambda x: x[0, 0, 0].is_integer(), AttributeError
    ),
    "the recorder": lambda x: x if hasattr(x, "recorder") else lie(x),
    "the terms": lambda x: x if hasattr(x, "terms") else lie(x),
    "attributes": attempt(lambda x: 1 / (not hasattr(x, "__dict__")), ZeroDivisionError),
}  # fmt: skip


@pytest.mark.parametrize("name", SWALLOWED)
def test_a_refusal_cannot_be_swallowed(name: str) -> None:
    target = ef.Target(SWALLOWED[name], N, D)
    assert target.expression is None
    assert target.untraceable


def test_other_threads_write_no_lines() -> None:
    assert ef.Target(records_in_a_thread, N, D).expression is None


def counting(honest: int) -> Function:
    calls = itertools.count()
    return lambda x: x if next(calls) < honest else 64 * x


def remembers(key: Function) -> Function:
    seen: dict[Any, Any] = {}
    return lambda x: seen.setdefault(key(x), x)


def times(factor: Function) -> Function:
    return lambda x: x * factor(x)


def somewhere(place: Callable[[np.ndarray], Any]) -> Function:
    """64 x where `place` says so; known by its type, so that it is never asked."""

    def function(x: Any) -> Any:
        return np.where(place(x), 64 * x + 1, x) if type(x) is np.ndarray else x

    return function


def is_recorded() -> bool:
    """Whether the tracer is among the callers, at a place where it records."""
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None:
        frame = frame.f_back
        if any(type(v).__name__ == "Recorder" for v in frame.f_locals.values()):
            return True
    return False


CALLS = itertools.count()


def everywhere(condition: Any) -> Any:
    """Whether it holds for all entries of a sequence."""
    return np.all(condition, (-1, -2), keepdims=True)


def batch(*sizes: int) -> Function:
    return times(lambda x: 64 if len(x) in sizes else 1)


MEASURED: dict[str, Function] = {
    "batches of one": batch(1),
    "batches of two": batch(2),
    "batches of three": batch(3),
    "batches of 64": batch(64),
    "all batches but of one": times(lambda x: 1 if len(x) == 1 else 64),
    "all batches but of one and 64": times(lambda x: 1 if len(x) in {1, 64} else 64),
    "large batches": times(lambda x: 64 if len(x) > 1000 else 1),
    "the first axis as a number": lambda x: x * x.shape[0] ** 0.5,
    "the size": lambda x: x * x.size / (N * D),
    "the second call": counting(1),
    "the third call": counting(2),
    "the fourth call": counting(3),
    "the twelfth call": counting(11),
    "every call": times(lambda x: next(CALLS)),
    "its memory": remembers(lambda x: x.shape),
    "its first result": remembers(lambda x: 0),
    "its memory of calls": remembers(lambda x: next(CALLS) % 2),
    "the time": lambda x: x * time.perf_counter_ns(),
    "random numbers": lambda x: x + np.random.default_rng().random() * 1e-3,
    "random signs": lambda x: x * (1 if np.random.default_rng().random() > 0.5 else 2),
    "the address": lambda x: x * (1 + id(x) % 7),
    "the type": lambda x: 64 * x if type(x) is np.ndarray else x,
    "its callers": lambda x: x if is_recorded() else 64 * x,
    "the first of the batch": lambda x: x * x[:1] / x[:1].clip(0.01, 0.02),
    "the batch without itself": lambda x: x + 64 * (x - x.mean(0, keepdims=True)),
    "the order of the batch": lambda x: np.sort(x, axis=0),
    "the batch in reverse": lambda x: x[::-1],
    "the neighbour in the batch": lambda x: np.roll(x, 1, axis=0),
    "the last of the batch": lambda x: x + x[-1:] - x,
    "the corners": somewhere(lambda x: everywhere((x == 0) | (x == 1))),
    "the corner 0": somewhere(lambda x: everywhere(x == 0)),
    "the corner 1": somewhere(lambda x: everywhere(x == 1)),
    "near a corner": somewhere(lambda x: everywhere((x > 0) & (x < 1e-300))),
    "near the corner 1": somewhere(lambda x: everywhere((x < 1) & (x > 1 - 1e-15))),
    "a face": somewhere(lambda x: x[:, :1] == 0),
    "another face": somewhere(lambda x: x[:, 1:] == 1),
    "the centre": somewhere(lambda x: everywhere(x == 0.5)),
    "a quarter": somewhere(lambda x: everywhere(x == 0.25)),
    "equal tokens": somewhere(lambda x: x[:, :1] == x[:, 1:]),
    "nearly equal tokens": somewhere(lambda x: abs(abs(x[:, :1] - x[:, 1:]) - 1e-9) < 1e-9),
    "a band of 1/100": somewhere(lambda x: np.abs(x[:, :1] - 0.37) < 0.005),
    "a ball": somewhere(lambda x: ((x - 0.7) ** 2).sum((-1, -2), keepdims=True) < 0.001),
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURED)
def test_a_trace_is_what_the_function_does(name: str) -> None:
    target = ef.Target(MEASURED[name], N, D)
    assert target.expression is None
    assert target.untraceable


def test_a_swallowed_refusal_is_not_proved() -> None:
    def function(x: Any) -> Any:
        try:
            return np.where(np.floor(1e4 * x) >= 9999, 1e6, x)
        except ValueError:
            return x

    target = ef.Target(function, N, D, equivariant=True)
    with pytest.raises(EveryformerError, match="operation floor"):
        ef.construct(target, tol=0.5)
    built = ef.construct(target, grid=4)
    assert built.certificate.verdict is not ef.Verdict.PROVED


def test_an_interruption_is_not_a_refusal() -> None:
    def interrupted(x: Any) -> Any:
        x[0, 0, 0] = np.nan if type(x) is np.ndarray else x[0, 0, 1:].sum()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ef.Target(interrupted, N, D).expression  # noqa: B018


def test_what_a_recording_left_behind_raises_ordinary_errors() -> None:
    left: list[Any] = []

    def function(x: Any) -> Any:
        left.append(x)
        return left[0] + 0 * x

    target = ef.Target(function, N, D)
    assert target.expression is None
    with pytest.raises(TargetError, match=r"after the call|earlier call|np\.asarray"):
        target(np.zeros((1, N, D)))


@pytest.mark.parametrize("large", [1e17, 1e300])
def test_a_function_that_float64_does_not_compute_is_not_traced(large: float) -> None:
    """(x + 1e17) - 1e17 is x in real arithmetic, and 0 as numpy runs it."""
    target = ef.Target(lambda x: (x + large) - large, 2, 1)
    assert target.expression is None
    assert "rounding may be off" in str(target.untraceable)
    assert ef.Target(lambda x: (x + 1e6) - 1e6, 2, 1).expression is not None
