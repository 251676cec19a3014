"""What the Python code of a module reads that is not the module's own.

A copy of a module has copies of all that it holds. But its functions read the globals,
closures, default arguments and attributes of classes that all copies share. There may lie a
parameter of the module that was copied, what an earlier run made of other weights, or a
count of runs: numbers that are not the same for all weights and at all times. So what is
read there must be fixed (`fixed`), and no function that ran may bind it anew.
"""

import builtins
import dis
import functools
import gc
import inspect
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from everyformer.checks.following.calls import Calls
from everyformer.checks.following.fixed import PLAIN, changeable, is_trusted, trusted

CHANGING = frozenset(
    ["time", "posix", "nt", "_io", "io", "_socket", "random", "_random", "gc", "_ctypes",
     "datetime", "numpy.random.mtrand"]
)  # fmt: skip
"""Modules in C whose functions give other answers at other times, or read any memory."""

ANYWHERE = frozenset(["globals", "_getframe", "_current_frames", "get_ident"])
"""Functions in C by which anything is read, whatever its name, or by whom."""

ASKING = frozenset(
    ["is_autocast_enabled", "is_autocast_cpu_enabled", "get_autocast_dtype",
     "get_autocast_cpu_dtype", "get_autocast_gpu_dtype", "is_autocast_cache_enabled",
     "get_default_dtype", "get_default_device", "get_num_threads",
     "get_num_interop_threads", "initial_seed", "get_rng_state",
     "is_inference_mode_enabled", "are_deterministic_algorithms_enabled",
     "get_float32_matmul_precision", "getenv", "getprofile", "gettrace",
     "_get_current_dispatch_mode", "_get_current_dispatch_mode_stack",
     "_len_torch_dispatch_stack", "_get_dispatch_stack_at", "_get_dispatch_mode",
     "_len_torch_function_stack", "_get_function_stack_at", "_get_overloaded_args",
     "_is_torch_function_mode_enabled", "_get_current_function_mode",
     "_get_current_function_mode_stack"]
)  # fmt: skip
"""Functions of torch and of Python that tell in which state these are."""

CATCHING = frozenset(
    ["suppress.__exit__", "ExitStack.__exit__", "AsyncExitStack.__aexit__",
     "_AssertRaisesContext.__exit__"]
)  # fmt: skip
"""Functions of Python by which a `with` statement goes on after an error."""

EXITS = frozenset(["__exit__", "__aexit__"])
"""Methods that say of an error in a `with` statement whether it stops there."""

ANSWERS = (AttributeError, LookupError, StopIteration, StopAsyncIteration, TypeError)
"""Errors that Python itself takes for an answer, as `getattr(.., None)` and `for` do."""

TELLING = frozenset(
    ["logging", "warnings", "importlib", "_frozen_importlib", "_frozen_importlib_external"]
)
"""Parts of Python that look at clocks and files of their own accord."""

OF_SCRIPTS = ("prim::tolist", "aten::format", "aten::str")
"""What TorchScript reads numbers by, without an operation that shows it."""

PASSING = TELLING | {"contextlib", "collections", "_collections_abc"}
"""Parts of Python that catch errors of what they call, of kinds that are seen elsewhere."""

Scope = Mapping[str, Any]
Codes = Mapping[types.CodeType, Scope]
Seen = Iterator[tuple[str, object]]


def reads_outside(run: Callable[[], object], held: Collection[object]) -> str:
    """What a run reads outside of a module that may change; "" if nothing of it may.

    Args:
        run: Runs the module.
        held: All objects that the module holds, classes too, and it.
    """
    frames = _Frames()
    with frames:
        run()
    asked = frames.asked or "sys.setprofile" * frames.taken
    if asked:
        return f"it asks {asked}, which may not say the same in every run"
    codes = frames.codes
    dropping = (code for code, scope in codes.items() if _drops_errors(code, scope))
    catches = frames.catches or next(dropping, None) or _stop_by_another_name(codes)
    if catches:
        name = catches.co_qualname
        return f"{name} catches errors and goes on, and numbers may cause them"
    scripts = next(filter(_reads_in_a_script, held), None)
    if scripts is not None:
        return f"{type(scripts).__name__} is a script that reads numbers off tensors"
    before = [*_globals(codes), *_of_classes(codes, held), *_closures(codes)]
    for name, value in before:
        why = "a run may bind it anew" if value is _BOUND else _unseen(value)
        why = why or changeable(value)
        if why:
            return f"it reads {name}, outside of it: {why}"
    if before:
        run()
        now = [*_globals(codes), *_of_classes(codes, held)]
        for (name, one), (_, two) in zip(before, now, strict=False):
            if one is not two and not (type(one) is type(two) in PLAIN and one == two):
                return f"it reads {name}, outside of it: a run changed it"
    return ""


def _package(scope: Scope) -> str:
    return str(scope.get("__name__")).partition(".")[0]


def _is_pythons(scope: Scope) -> bool:
    """Whether a function of these globals is of Python's own library."""
    return _package(scope) in sys.stdlib_module_names


@functools.lru_cache(2**12)
def _goes_on(code: types.CodeType) -> bool:
    """Whether a function has a handler of errors that does not raise again.

    An export has no numbers, so it does not see the errors that numbers cause, such as
    those of a Cholesky decomposition. A `with` statement ends like such a handler; what it
    does with an error is up to an `__exit__`, which stops it unless it returns a constant.
    """
    steps = list(dis.get_instructions(code))
    ends = sum(
        one.opname == "POP_EXCEPT" and two.opname != "RERAISE"
        for one, two in pairwise(steps)
    )
    managed = sum(step.opname == "WITH_EXCEPT_START" for step in steps)
    return ends > managed or (code.co_name in EXITS and _may_stop(code))


@functools.lru_cache(2**12)
def _may_stop(code: types.CodeType) -> bool:
    """Whether a function returns more than None or False: so an `__exit__` stops errors."""
    steps = list(dis.get_instructions(code))
    given = [one for one, two in pairwise(steps) if two.opname == "RETURN_VALUE"]
    given += [one for one in steps if one.opname == "RETURN_CONST"]
    constant = ("LOAD_CONST", "RETURN_CONST")
    return any(one.opname not in constant or one.argval for one in given)


def _stop_by_another_name(codes: Codes) -> types.CodeType | None:
    """A function that ran, and may stop errors as what a class has as its `__exit__`."""
    waiting: list[type] = [object]
    seen = set[type]()
    while waiting:
        kinds = type.__subclasses__(waiting.pop())
        waiting += [kind for kind in kinds if kind not in seen]
        seen.update(kinds)
    for kind in seen:
        for name in EXITS & vars(kind).keys():
            code = _code_of(vars(kind)[name])
            if code in codes and code.co_name != name and _may_stop(code):
                return code
    return None


def _code_of(value: object) -> Any:
    """The code of a function, or of what is called like one; None if it has none."""
    inner: Any = getattr(value, "__func__", getattr(value, "func", value))
    called = vars(type(inner)).get("__call__")
    return getattr(inner, "__code__", getattr(called, "__code__", None))


def _drops_errors(code: types.CodeType, scope: Scope) -> bool:
    """Whether errors of what a function calls may be nobody's."""
    if code.co_name == "__del__" or _goes_on(code):
        return True
    for names in _raised(code):
        kinds = [scope.get(name, getattr(builtins, name, None)) for name in names]
        errors = [
            one for one in kinds if isinstance(one, type) and issubclass(one, BaseException)
        ]
        if not errors or any(issubclass(one, ANSWERS) for one in errors):
            return True
    return False


@functools.lru_cache(2**12)
def _raised(code: types.CodeType) -> tuple[frozenset[str], ...]:
    """For each error that is raised in place of another: globals it is made of."""
    found: list[frozenset[str]] = []
    loaded: set[str] | None = None  # outside of handlers
    for step in dis.get_instructions(code):
        if step.opname in ("PUSH_EXC_INFO", "CHECK_EXC_MATCH"):
            loaded = set()
        elif step.opname in ("POP_EXCEPT", "RERAISE", "WITH_EXCEPT_START"):
            loaded = None
        elif loaded is not None and step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            loaded.add(step.argval)
        elif loaded is not None and step.opname == "RAISE_VARARGS" and step.arg:
            found.append(frozenset(loaded))
    return tuple(found)


def _unseen(value: object) -> str:
    """Why what is done with a value is not seen; "" if it is."""
    is_module = isinstance(value, types.ModuleType)
    name = getattr(value, "__name__", "")
    place = name if is_module else getattr(value, "__module__", "")
    if _reads_in_a_script(value):
        return "a script that reads numbers off tensors"
    if place in ("weakref", "_weakref"):
        return "errors of what it calls are dropped"
    within = isinstance(place, str) and place.startswith("torch._C")
    if within and (is_module or str(name).startswith("_")):
        return "it may go past those that watch"
    return ""


def _reads_in_a_script(value: object) -> bool:
    if not isinstance(value, torch.jit.ScriptFunction | torch.jit.ScriptModule):
        return False
    graph = str(getattr(value, "inlined_graph", ""))  # a part need not have a forward
    return any(word in graph for word in OF_SCRIPTS)


class _Bound:
    """In place of the value of a name that a function gives a new one."""


_BOUND = _Bound()


class _Frames(Calls):
    """Notes the functions that run, but for those that are trusted.

    Attributes:
        codes: The globals of each function, by its code.
        asked: The first function called by them that is not one of its arguments; what
            Python's own functions call for them counts, too.
        catches: What they call of `CATCHING`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.codes: dict[types.CodeType, Scope] = {}
        self.asked = ""
        self.catches: types.CodeType | None = None

    def note(self, frame: types.FrameType, event: str, function: Any) -> None:
        """Note a call."""
        code = frame.f_code
        if event == "call" and code not in self.codes:
            if not trusted(frame.f_globals):
                self.codes[code] = frame.f_globals
            elif code.co_name in ASKING and self._is_behind(frame.f_back):
                self.asked = self.asked or f"{frame.f_globals['__name__']}.{code.co_name}"
            elif code.co_qualname in CATCHING and self._is_behind(frame.f_back):
                self.catches = code
        if event == "call" and code in self.codes:
            self.catches = self.catches or _catching(frame.f_back) or _ends_late(frame)
        elif event == "c_call" and not self.asked:
            self._note_in_c(frame, function)

    def _note_in_c(self, frame: types.FrameType, function: Any) -> None:
        name = function.__name__
        owner = getattr(function, "__self__", None)
        kind = owner if isinstance(owner, type | types.ModuleType) else type(owner)
        places = {function.__module__, kind.__name__, getattr(kind, "__module__", "")}
        telling = name in ANYWHERE or name in ASKING or places & CHANGING
        if telling and self._is_behind(frame):
            self.asked = f"{kind.__name__}.{name}"

    def _is_behind(self, frame: types.FrameType | None) -> bool:
        """Whether a function of the module calls, itself or by functions of Python."""
        while frame is not None and frame.f_code not in self.codes:
            if _package(frame.f_globals) in TELLING or not _is_pythons(frame.f_globals):
                return False
            frame = frame.f_back
        return frame is not None


def _catching(frame: types.FrameType | None) -> types.CodeType | None:
    """What of Python's functions in a row, the last of this frame, catches errors."""
    while frame is not None and trusted(frame.f_globals) and _is_pythons(frame.f_globals):
        passing = _package(frame.f_globals) in PASSING
        if not passing and _goes_on(frame.f_code) and _is_guarded(frame):
            return frame.f_code
        frame = frame.f_back
    return None


def _is_guarded(frame: types.FrameType) -> bool:
    """Whether a function is where it has a handler of errors."""
    entries: Any = getattr(dis.Bytecode(frame.f_code), "exception_entries", None)
    return entries is None or any(e.start <= frame.f_lasti < e.end for e in entries)


def _ends_late(frame: types.FrameType) -> types.CodeType | None:
    """A generator that may still do something when nobody has it, or None.

    Errors are dropped then. A generator that is a context manager is ended by `with`.
    """
    before = frame.f_back
    managed = before is not None and _package(before.f_globals) == "contextlib"
    generates = frame.f_code.co_flags & inspect.CO_GENERATOR
    if managed or not generates or not _has_handler(frame.f_code):
        return None
    return frame.f_code


@functools.lru_cache(2**12)
def _has_handler(code: types.CodeType) -> bool:
    return any(step.opname == "PUSH_EXC_INFO" for step in dis.get_instructions(code))


class _Names(NamedTuple):
    """What a function names.

    Attributes:
        read: Globals, and modules that it imports.
        bound: Globals that it gives a value.
        cells: Variables of functions around it that it gives a value.
        parts: Attributes, and strings, by which attributes may be looked up.
        stored: Attributes that it gives a value.
    """

    read: frozenset[str]
    bound: frozenset[str]
    cells: frozenset[str]
    parts: frozenset[str]
    stored: frozenset[str]


@functools.lru_cache(2**12)
def _names(code: types.CodeType) -> _Names:
    found: dict[str, set[str]] = {}
    for step in dis.get_instructions(code):
        if isinstance(step.argval, str):
            found.setdefault(step.opname, set()).add(step.argval)

    def of(*operations: str) -> frozenset[str]:
        return frozenset().union(*(found.get(one, set()) for one in operations))

    return _Names(
        of("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME"),
        of("STORE_GLOBAL", "DELETE_GLOBAL"),
        of("STORE_DEREF", "DELETE_DEREF"),
        frozenset([*code.co_names, *(c for c in code.co_consts if isinstance(c, str))]),
        of("STORE_ATTR", "DELETE_ATTR"),
    )


def _globals(codes: Codes) -> Seen:
    """Globals that functions name, and attributes of modules and classes among them."""
    for code, scope in codes.items():
        names = _names(code)
        yield from ((name, _BOUND) for name in names.bound)
        for name in sorted(names.read):
            package = f"{scope.get('__package__')}.{name}"
            missing = sys.modules.get(name, sys.modules.get(package))
            yield from _parts(name, scope.get(name, missing), names)


def _parts(name: str, value: object, names: _Names, deep: int = 0) -> Seen:
    """A value and, of a module, a class or a function, attributes that are named too."""
    yield name, value
    held = (
        value if isinstance(value, types.ModuleType | type | types.FunctionType) else None
    )
    if held is None or deep > 2 or (isinstance(value, type) and is_trusted(value)):
        return
    for key in sorted(names.parts & vars(held).keys()):
        if key in names.stored:
            yield f"{name}.{key}", _BOUND
        if not key.startswith("__"):
            yield from _parts(f"{name}.{key}", vars(held)[key], names, deep + 1)


def _of_classes(codes: Codes, held: Collection[object]) -> Seen:
    """Attributes of the classes of what a module holds, of names that functions have.

    One that a function gives a value belongs to the object, if that has one of its own.
    """
    names = frozenset[str]().union(*(_names(code).parts for code in codes))
    stored = frozenset[str]().union(*(_names(code).stored for code in codes))
    own = {(type(one), key) for one in held for key in getattr(one, "__dict__", ())}
    classes: set[type[object]] = {type(one) for one in held}
    classes |= {one for one in held if isinstance(one, type)}
    kinds = sorted(classes, key=lambda one: one.__qualname__)
    for kind in kinds:
        for base in (*kind.__mro__, *type(kind).__mro__):
            for key in sorted(names & vars(base).keys()) if not is_trusted(base) else ():
                if key in stored and (kind, key) not in own:
                    yield f"{base.__name__}.{key}", _BOUND
                yield f"{base.__name__}.{key}", vars(base)[key]


def _closures(codes: Codes) -> Seen:
    """What functions that were there before the run have of their own."""
    for one in gc.get_referrers(*codes) if codes else ():
        if not isinstance(one, types.FunctionType) or one.__code__ not in codes:
            continue
        about = one.__qualname__
        for key, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
            try:
                bound = key in _names(one.__code__).cells
                yield f"{key} of {about}", _BOUND if bound else cell.cell_contents
            except ValueError:  # it is empty
                continue
        given = [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
        yield from ((f"a default of {about}", value) for value in given)
        yield from ((f"{about}.{key}", value) for key, value in vars(one).items())
