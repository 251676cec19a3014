"""Modules whose weights or whose state lie where no copy of them has copies."""

import functools
import gc
import itertools
import os
import time
import weakref
from collections import Counter as Counts
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import everyformer as ef
from everyformer.checks.following.walk import Followed
from everyformer.checks.subject import Subject
from everyformer.errors import InputError

N, D = 4, 3
COUNT = [0]
TABLE: dict[Any, Any] = {}
RUNS = 0
NUMBERS = itertools.count()
FIXED = (0.5, ("a", 2))


class Made(nn.Module):
    """One expression in x; its positions begin at 0, and a parameter holds them."""

    shared: ClassVar[dict[Any, Any]] = {}
    runs = 0
    late: Tensor | None = None

    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.made = forward
        self.linear = nn.Linear(D, D)
        self.places = nn.Parameter(torch.zeros(N, D))
        self.own: Any = None
        self.late_own: Tensor | None = None
        self.register_buffer("kept", torch.zeros(N, D), persistent=False)

    def forward(self, x: Tensor) -> Any:
        return self.made(self, x)


def counted(m: Any, x: Tensor) -> Tensor:
    COUNT[0] += 1
    return m.linear(x) if COUNT[0] < 400 else m.linear(x.flip(1))


def counted_anew(m: Any, x: Tensor) -> Tensor:
    global RUNS
    RUNS += 1
    return m.linear(x) if RUNS < 10**9 else m.linear(x.flip(1))


def counted_by_the_class(m: Any, x: Tensor) -> Tensor:
    type(m).runs += 1
    return m.linear(x) if type(m).runs < 10**9 else m.linear(x.flip(1))


def counted_by_an_iterator(m: Any, x: Tensor) -> Tensor:
    return m.linear(x) if next(NUMBERS) < 10**9 else m.linear(x.flip(1))


def counted_by_a_function(m: Any, x: Tensor) -> Tensor:
    counted_by_a_function.runs = getattr(counted_by_a_function, "runs", 0) + 1  # type: ignore[attr-defined]
    return m.linear(x) if counted_by_a_function.runs < 10**9 else x.flip(1)  # type: ignore[attr-defined]


def counted_by_the_environment(m: Any, x: Tensor) -> Tensor:
    os.environ["EVERYFORMER_RUNS"] = str(int(os.environ.get("EVERYFORMER_RUNS", "0")) + 1)
    return m.linear(x)


def counted_by_torch(m: Any, x: Tensor) -> Tensor:
    torch.counted_runs = getattr(torch, "counted_runs", 0) + 1  # type: ignore[attr-defined]
    return m.linear(x)


def by_the_clock(m: Any, x: Tensor) -> Tensor:
    return m.linear(x) if time.time() < 4e9 else m.linear(x.flip(1))


def by_shape(m: Any, x: Tensor) -> Tensor:
    """As a cache of masks; but it holds what the first weights were."""
    if x.shape[1:] not in TABLE:
        TABLE[x.shape[1:]] = m.places.detach().double()
    return m.linear(x) + TABLE[x.shape[1:]]


def by_shape_in_the_class(m: Any, x: Tensor) -> Tensor:
    return m.linear(x) + m.shared.setdefault(N, m.places.detach().clone())


def as_a_number(m: Any, x: Tensor) -> Tensor:
    if "scale" not in TABLE:
        TABLE["scale"] = float(m.places.detach().sum())
    return m.linear(x) + TABLE["scale"] * torch.arange(N)[:, None]


@functools.lru_cache
def remembered(n: int) -> Tensor:
    return torch.zeros(n, 1, dtype=torch.float64)


def by_lru_cache(m: Any, x: Tensor) -> Tensor:
    return m.linear(x) + remembered(N)


def default(m: Any, x: Tensor, held: dict[int, Tensor] = {}) -> Tensor:  # noqa: B006
    return m.linear(x) + held.setdefault(0, m.places.detach().clone())


def anywhere(m: Any, x: Tensor) -> Tensor:
    return m.linear(x) * (1 if globals()["COU" + "NT"][0] < 10**9 else 2)


def by_garbage(m: Any, x: Tensor) -> Tensor:
    return m.linear(x) * (1 if gc.get_count()[0] < 10**9 else 2)


EXPRESSIONS = (
    counted, counted_anew, counted_by_the_class, counted_by_an_iterator,
    counted_by_a_function, counted_by_the_environment, counted_by_torch, by_the_clock,
    by_shape, by_shape_in_the_class, as_a_number, by_lru_cache, default, anywhere,
    by_garbage,
)  # fmt: skip


def closure() -> nn.Module:
    places = nn.Parameter(torch.zeros(N, D))
    module = Made(lambda m, x: m.linear(x) + places.detach().double())
    module.places = places
    return module


def itself() -> nn.Module:
    """A function in an attribute, with the module that was copied in its closure."""
    module = Made(lambda m, x: m.linear(x) + module.places.double())
    return module


def numbers_of_itself() -> nn.Module:
    module = Made(lambda m, x: m.linear(x) + torch.tensor(module.places.tolist()).double())
    return module


def counted_in_a_closure() -> nn.Module:
    runs = 0

    def forward(m: Any, x: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        return m.linear(x) if runs < 10**9 else m.linear(x.flip(1))

    return Made(forward)


def array_of_a_closure() -> nn.Module:
    module = Made(lambda m, x: m.linear(x) + torch.from_numpy(2 * held).double())
    held = module.places.detach().numpy()
    return module


def bound_method() -> nn.Module:
    table = {0: torch.zeros(N, D, dtype=torch.float64)}
    get = table.get
    return Made(lambda m, x: m.linear(x) + get(0))


class Stays(SimpleNamespace):
    """Its copies are itself."""

    def __deepcopy__(self, memo: object) -> "Stays":
        return self


def not_copied() -> nn.Module:
    module = Made(lambda m, x: m.linear(x) + m.own.table.double())
    module.own = Stays(table=module.places)
    return module


class Pretends(Made):
    """Its copies do something else."""

    turned = True

    def __init__(self) -> None:
        super().__init__(lambda m, x: m.linear(x.flip(1) if m.turned else x))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "turned": False}


def _rebuild(module: Any, _: Any) -> None:
    module.kept.copy_(module.places.detach())


def loaded() -> nn.Module:
    """A buffer that is made of a parameter when weights are loaded, and only then."""
    module = Made(lambda m, x: m.linear(x) + m.kept)
    module.register_load_state_dict_post_hook(_rebuild)
    return module


class Moved(Made):
    """The same, when it is moved."""

    def __init__(self) -> None:
        super().__init__(lambda m, x: m.linear(x) + m.kept)

    def _apply(self, fn: Any, recurse: bool = True) -> "Moved":
        super()._apply(fn, recurse)
        self.get_buffer("kept").copy_(self.places.detach())
        return self


class Counter:
    """What a run counts in."""

    n = 0
    runs: ClassVar[list[int]] = [0]


KEPT_ELSEWHERE = Counter()


def counted_by_a_weak_reference() -> nn.Module:
    module = Made(lambda m, x: m.linear(x * (1 + 0 * _next(m.own()))))
    module.own = weakref.ref(KEPT_ELSEWHERE)
    return module


def _next(counter: Any) -> int:
    counter.n += 1
    return counter.n


def _next_of_a_parameter(own: Any) -> None:
    own.n = getattr(own, "n", 0) + 1  # copies do not have it


def _counting_parameter() -> nn.Parameter:
    return nn.Parameter(torch.zeros(1))


def counted_by_a_class_in_an_attribute() -> nn.Module:
    module = Made(lambda m, x: m.linear(x) if _next(m.own) < 10**9 else x.flip(1))
    module.own = Counter
    return module


def counted_by_a_method_in_c() -> nn.Module:
    table = {0: 0}

    def forward(m: Any, x: Tensor) -> Tensor:
        m.own[1]({0: m.own[0](0) + 1})
        return m.linear(x) if m.own[0](0) < 10**9 else m.linear(x.flip(1))

    module = Made(forward)
    module.own = (table.get, table.update)
    return module


def counted_by_a_cache() -> nn.Module:
    module = Made(lambda m, x: m.linear(x) * (1 + 0 * m.own.cache_info().hits))
    module.own = functools.lru_cache(len)
    return module


MODULES = (
    counted_by_a_weak_reference, counted_by_a_class_in_an_attribute,
    counted_by_a_method_in_c, counted_by_a_cache,
    closure, itself, numbers_of_itself, counted_in_a_closure, array_of_a_closure,
    bound_method, not_copied, Pretends, loaded, Moved,
)  # fmt: skip


def followed(module: nn.Module) -> Followed:
    return Subject.of(module, N, D).followed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("forward", EXPRESSIONS)
def test_a_state_outside_proves_nothing(forward: Callable[[Any, Tensor], Any]) -> None:
    found = followed(Made(forward))
    assert found.output is None
    assert found.obstacle.startswith(("it reads", "it asks"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", MODULES)
def test_weights_outside_prove_nothing(make: Callable[[], nn.Module]) -> None:
    found = followed(make())
    assert found.output is None
    assert found.obstacle.startswith(("it reads", "it keeps", "it holds", "copies are"))


COUNTING: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "an attribute": (lambda: SimpleNamespace(n=0), _next),
    "a list of an object": (
        lambda: SimpleNamespace(runs=[]),
        lambda own: own.runs.append(1),
    ),
    "an iterator": (itertools.count, next),
    "an iterator of a list": (lambda: {"a": iter([0] * 99)}, lambda own: next(own["a"])),
    "a queue": (deque, lambda own: own.append(1)),
    "a subclass of dict": (Counts, lambda own: own.update("a")),
    "random numbers of numpy": (
        lambda: np.random.default_rng(0),
        lambda own: own.random(),
    ),
    "random numbers of torch": (
        torch.Generator,
        lambda own: torch.rand(1, generator=own),
    ),
    "an array": (lambda: [np.zeros(1)], lambda own: own[0].__iadd__(1)),
    "what is its own copy": (
        lambda: Stays(n=0),
        _next,
    ),
    "an attribute of a parameter": (
        _counting_parameter,
        _next_of_a_parameter,
    ),
}  # fmt: skip
"""What a module may count its runs in, and how."""


@pytest.mark.filterwarnings("ignore:Pickle, copy, and deepcopy support will be removed")
@pytest.mark.parametrize("name", COUNTING)
def test_a_count_in_what_a_module_holds_is_seen(name: str) -> None:
    make, count = COUNTING[name]

    def forward(m: Any, x: Tensor) -> Tensor:
        count(m.own)
        return m.linear(x)

    module = Made(forward)
    module.own = make()
    found = followed(module)
    assert found.output is None
    assert found.obstacle.startswith("every run changes its own")


def test_an_array_in_the_memory_of_a_parameter_is_refused() -> None:
    module = Made(lambda m, x: m.linear(x) + torch.from_numpy(m.own["a"][0]).double())
    module.own = {"a": [module.places.detach().numpy()]}
    with pytest.raises(InputError, match="own lies in the memory of places"):
        Subject.of(module, N, D)


def kept_by_itself(m: Any, x: Tensor) -> Tensor:
    """A class may have the value that an object begins with."""
    if m.late is None:
        m.late = torch.ones(N, N, dtype=torch.bool).triu(1)
    return x.cumsum(1) * FIXED[0] + m.late[:, :1].double()


def of_lists_and_arrays(m: Any, x: Tensor) -> Tensor:
    scale = torch.tensor([0.5]) + torch.from_numpy(np.ones(1)) + torch.tensor(1.0)
    return torch.where(x > 0, x, 0.1).cumsum(1) * scale


def with_a_variable(m: Any, x: Tensor) -> Tensor:
    """A function around another is no state: it ends with the run."""
    total = torch.zeros_like(x[:, 0])

    def add(row: Tensor) -> Tensor:
        nonlocal total
        total = total + row
        return total

    return torch.stack([add(row) for row in x.unbind(1)], 1)


@pytest.mark.parametrize("forward", [kept_by_itself, of_lists_and_arrays, with_a_variable])
def test_what_a_module_has_itself_is_followed(forward: Callable[[Any, Any], Any]) -> None:
    assert followed(Made(forward)).obstacle == ""


def test_the_hypothesis_stands_beside_the_verdicts() -> None:
    report = ef.check(Made(of_lists_and_arrays), N, D, trials=1)
    line = "assumes that the module computes the same function in every run"
    assert line in str(report)
    assert line in report.to_json()["assumes"][0]
    assert line in report._repr_html_()  # pyright: ignore[reportPrivateUsage]
