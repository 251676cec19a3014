"""Shapes are checked where there are shapes, and types everywhere.

The import hook of jaxtyping wraps each function in two others and binds its arguments
anew at each call, which costs ten times what the check itself does. A function whose
annotations name no array needs none of that: beartype alone checks it. A function inside
another is not checked: it would be wrapped anew whenever the other is called. Each test
checks the first calls of every function, and few of the later ones: checking them all took
as long as everything else in the tests.
"""

import builtins
import dataclasses
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, wraps
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any, ForwardRef, Literal, TypeVar, get_args, get_origin

import jaxtyping
import pytest

SOURCES = Path(__file__).parent / "src"
MODULES_WITHOUT_HOOK = {
    # numba compiles their functions
    "everyformer.model.execute",
    "everyformer.patterns.bitsets",
    # their own refusals of wrong types and shapes are tested
    "everyformer.layers.models.encoder_config",
    "everyformer.layers.sparse_attention",
    "everyformer.ops.disentangled_attention.operator",
    "everyformer.ops.dynamic_convolution.operator",
    "everyformer.ops.light_convolution.operator",
    "everyformer.ops.pairwise_attention.operator",
    "everyformer.ops.sparse_attention.operator",
    "everyformer.ops.toeplitz_attention.operator",
    "everyformer.train.config",
    # hypothesis builds it, and beartype draws random numbers
    "everyformer.model.attention_spec",
    # torch.export gives it symbols for whole numbers
    "everyformer.ops.pairwise_attention.reference",
    "everyformer.ops.toeplitz_attention.reference",
}

FIRST_CALLS = 8
"""Calls of a function in a test that are checked."""

LATER_CALLS = 64
"""Of the calls after them, one of so many is checked."""

wrapped_for_shapes: Callable[..., Any] = jaxtyping.jaxtyped
running_test = [0]


@cache
def as_jaxtyping() -> Any:
    """A wrong type is a TypeError, as it is for Python; beartype's own errors are not.

    Without the hook (tests on a GPU) beartype need not be installed.
    """
    from beartype import BeartypeConf

    return BeartypeConf(violation_type=jaxtyping.TypeCheckError, is_pep484_tower=True)


def names_an_array(annotation: Any, names: Mapping[str, object]) -> bool:
    """Whether an annotation holds an array of jaxtyping, or a name that is not known."""
    if isinstance(annotation, ForwardRef):
        return names_an_array(annotation.__forward_arg__, names)
    if isinstance(annotation, str):
        used = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", annotation))
        others = {name: names[name] for name in names.keys() - used}
        return not used <= names.keys() or any(
            names_an_array(names[name], others) for name in used
        )
    if isinstance(annotation, TypeVar):
        parts = (annotation.__bound__, *annotation.__constraints__)
    elif isinstance(annotation, list | tuple):  # the arguments of a Callable
        parts = tuple(annotation)
    elif get_origin(annotation) is Literal:
        parts = ()
    elif get_origin(annotation) is Annotated:
        parts = get_args(annotation)[:1]
    elif inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    else:
        parts = get_args(annotation)
    return any(names_an_array(part, names) for part in parts)


def has_shapes(function: FunctionType) -> bool:
    """Whether a function needs more than its types checked."""
    classes_around = dict.fromkeys(function.__qualname__.split(".")[:-1])
    names = {**vars(builtins), **function.__globals__, **classes_around}
    return any(names_an_array(one, names) for one in function.__annotations__.values())


def jaxtyped(checked: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """What the import hook puts on every function and class."""
    if checked is None:
        return partial(jaxtyped, typechecker=typechecker)
    if "<locals>" in getattr(checked, "__qualname__", ""):
        return checked
    if inspect.isclass(checked):
        if dataclasses.is_dataclass(checked) and "__init__" in vars(checked):
            init = vars(checked)["__init__"]
            checked.__init__ = jaxtyped(init, typechecker=typechecker)
        return checked
    if not isinstance(checked, FunctionType):
        return wrapped_for_shapes(checked, typechecker=typechecker)
    if has_shapes(checked):
        return sometimes(checked, wrapped_for_shapes(checked, typechecker=typechecker))
    return sometimes(checked, typechecker(checked, conf=as_jaxtyping()))


def sometimes(function: FunctionType, checked: Callable[..., Any]) -> Callable[..., Any]:
    """The function, checked in its first calls of a test and in some of the later ones.

    It has the globals and the file of the function: by these its callers know whose it is.
    """
    if checked is function:  # it has no annotations
        return function
    first, later, running = FIRST_CALLS, LATER_CALLS, running_test
    seen = [0, 0]  # the test, and calls in it

    def call(*args: Any, **kwargs: Any) -> Any:
        if seen[0] != running[0]:
            seen[:] = running[0], 0
        seen[1] += 1
        if seen[1] <= first or not seen[1] % later:
            return checked(*args, **kwargs)
        return function(*args, **kwargs)

    code = call.__code__.replace(co_filename=function.__code__.co_filename)
    cells = call.__closure__
    return wraps(function)(
        FunctionType(code, function.__globals__, function.__name__, None, cells)
    )


jaxtyping.jaxtyped = jaxtyped


def hooked_modules() -> list[str]:
    """All modules but those of `MODULES_WITHOUT_HOOK`, with what is inside them."""
    found: list[str] = []
    for path in sorted(SOURCES.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        inside = {name[: dot.start()] for dot in re.finditer(r"\.|$", name)}
        if path.name != "__init__.py" and not inside & MODULES_WITHOUT_HOOK:
            found.append(name)
    return found


def pytest_plugin_registered(plugin: object) -> None:
    """Hook the modules, before any is imported; not for tests that give wrong types.

    The settings were registered before this file and are told of when it is: before the
    conftest.py of a folder, which may import what is to be hooked, is read.
    """
    if not isinstance(plugin, pytest.Config):
        return
    if "not unhooked" in plugin.known_args_namespace.markexpr:
        jaxtyping.install_import_hook(hooked_modules(), "beartype.beartype")


def pytest_runtest_setup() -> None:
    """Another test: calls are counted anew."""
    running_test[0] += 1


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a table marked `rows(k)`, k rows spread over it; the others are slow."""
    tables: defaultdict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("rows"):
            tables[item.nodeid.partition("[")[0], *mark.args].append(item)
    for (_, k), table in tables.items():
        for item in set(table) - set(spread(table, k)):
            item.add_marker("slow")


def spread(table: Sequence[pytest.Item], k: int) -> list[pytest.Item]:
    """About k rows at equal distances, the first and the last among them."""
    last = len(table) - 1
    return [table[round(i * last / max(k - 1, 1))] for i in range(min(k, last + 1))]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests of the second call say so where `make test` looks for them."""
    for mark in ("compile", "unhooked"):
        if item.get_closest_marker(mark) and not _names_a_mark(item.path):
            msg = (
                f"{item.path} has tests marked {mark!r} without writing pytest.mark.{mark}"
            )
            raise pytest.UsageError(f"{msg}: `make test` would not find them.")


@cache
def _names_a_mark(path: Path) -> bool:
    return re.search(r"mark\.(compile|unhooked)", path.read_text()) is not None
