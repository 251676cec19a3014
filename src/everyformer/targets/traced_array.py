"""An array of terms that numpy's functions accept in place of numbers.

    numpy function or operator -> __array_function__, __array_ufunc__
                               -> the same function on an array of `Term` objects
                               -> their methods, entry by entry -> lines of the recorder

Only what is listed in `array_functions.py` and in `UFUNCS` goes through. All else that an
array or a number of numpy has is refused by name, as soon as it is looked up; and what they
do not have, a traced array does not show either. Errors that the terms raise last as
refusals do: where an array of numbers raises none, the function must not go on.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from everyformer.targets.array_functions import FUNCTIONS, check_dtype, check_wide
from everyformer.targets.recorder import NO_MASK, NO_NUMBER, UNKNOWN, Recorder
from everyformer.targets.term import NO_BRANCHES, Term

_AS_THEY_ARE: tuple[np.ufunc, ...] = (
    np.add, np.subtract, np.multiply, np.divide, np.negative, np.positive, np.absolute,
    np.fabs, np.power, np.square, np.reciprocal, np.sqrt, np.exp, np.exp2, np.expm1, np.log,
    np.log2, np.log10, np.log1p, np.sin, np.cos, np.tan, np.sinh, np.cosh, np.tanh,
    np.hypot, np.matmul,
)  # fmt: skip
_MAXIMUM: np.ufunc = np.frompyfunc(Term.maximum, 2, 1, identity=None)
_MINIMUM: np.ufunc = np.frompyfunc(Term.minimum, 2, 1, identity=None)
UFUNCS: dict[np.ufunc, np.ufunc] = {
    **{ufunc: ufunc for ufunc in _AS_THEY_ARE},
    np.maximum: _MAXIMUM,
    np.fmax: _MAXIMUM,
    np.minimum: _MINIMUM,
    np.fmin: _MINIMUM,
    np.logaddexp: np.frompyfunc(Term.logaddexp, 2, 1),
    np.sign: np.frompyfunc(Term.sign, 1, 1),
    np.heaviside: np.frompyfunc(Term.heaviside, 2, 1),
}
"""For each function of numbers, the one that does the same to arrays of terms."""

FLOATING = frozenset(
    [np.divide, np.fabs, np.sqrt, np.exp, np.exp2, np.expm1, np.log, np.log2, np.log10,
     np.log1p, np.sin, np.cos, np.tan, np.sinh, np.cosh, np.tanh, np.hypot, np.logaddexp,
     np.heaviside]
)  # fmt: skip
"""Those that make float64 of integers."""

NO_ROUNDING = "numpy would round them; begin with np.zeros_like(x)"


def _swapped(method: Callable[[Term, Term], Term]) -> Callable[[Term, Term], Term]:
    return lambda a, b: method(b, a)


COMPARISONS: dict[np.ufunc, np.ufunc] = {
    np.greater: np.frompyfunc(Term.exceeds, 2, 1),
    np.greater_equal: np.frompyfunc(Term.reaches, 2, 1),
    np.less: np.frompyfunc(_swapped(Term.exceeds), 2, 1),
    np.less_equal: np.frompyfunc(_swapped(Term.reaches), 2, 1),
    np.equal: np.frompyfunc(Term.equals, 2, 1),
    np.not_equal: np.frompyfunc(Term.differs, 2, 1),
}
"""From numbers to truth values."""

_AND: np.ufunc = np.frompyfunc(Term.both, 2, 1, identity=None)
_OR: np.ufunc = np.frompyfunc(Term.either, 2, 1, identity=None)
_NOT: np.ufunc = np.frompyfunc(Term.negated, 1, 1)
_XOR: np.ufunc = np.frompyfunc(Term.one_of_two, 2, 1)
LOGIC: dict[np.ufunc, np.ufunc] = {
    np.logical_and: _AND,
    np.bitwise_and: _AND,
    np.logical_or: _OR,
    np.bitwise_or: _OR,
    np.logical_not: _NOT,
    np.invert: _NOT,
    np.logical_xor: _XOR,
    np.bitwise_xor: _XOR,
}
"""From truth values to truth values."""


class Lines:
    """Arrays of terms of one recorder, with and without their wrapping.

    Attributes:
        recorder: What writes down the operations.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    @staticmethod
    def is_traced(value: Any) -> bool:
        """True for an array of terms in its wrapping."""
        return type(value) is Traced

    def like(self, result: Any, *, whole: bool = False) -> Any:
        """Wrap what numpy made of the terms: an array, one term, or several arrays.

        Args:
            result: That.
            whole: Whether numpy has int64 there, made of truth values.
        """
        if isinstance(result, (tuple, list)):
            return type(result)(self.like(piece, whole=whole) for piece in result)
        if isinstance(result, np.ndarray) and all(isinstance(t, Term) for t in result.flat):
            if not is_mask(result) and any(term.boolean for term in result.flat):
                result = _NUMBER(result)  # truth values beside numbers: a new array
            self._check_size(result, whole)
            return Traced(result, self.recorder, whole=whole)  # itself: it may be a view
        terms = self.lift(result)
        if terms.ndim == 0:
            terms.flags.writeable = False  # a scalar: see __array_ufunc__
        self._check_size(terms, whole)
        return Traced(terms, self.recorder, whole=whole)

    def checked(self, array: "Traced", *, whole: bool) -> "Traced":
        """The same array; refused where what numpy made of integers may overflow."""
        self._check_size(terms_of(array), whole)
        return array

    def _check_size(self, terms: np.ndarray, whole: bool) -> None:
        if whole and not all(self.recorder.fits(term) for term in terms.flat):
            why = "In int64 they overflow or are rounded; make them float before"
            self.recorder.refuse("Large integers made of truth values, or fractions", why)

    def lift(self, value: Any) -> np.ndarray:
        """An array of terms, from a traced array or from numbers."""
        if type(value) is Traced:
            terms = terms_of(value)
            self.recorder.term(next(terms.flat, 0))
            return terms
        given = _single(value) if isinstance(value, Term) else np.asarray(value)
        terms = np.empty_like(given, dtype=object, subok=False)
        for place, entry in np.ndenumerate(given):
            term = self.recorder.term(entry)
            terms[place] = term.truth() if given.dtype == bool else term
        return terms

    def chosen(self, condition: Any, a: Any, b: Any) -> Any:
        """a where the condition, of truth values, holds, and b elsewhere."""
        c, first, second = (self.lift(value) for value in (condition, a, b))
        if not is_mask(c):
            self.recorder.refuse("numpy.where on a condition of numbers", NO_MASK)
        whole = check_wide(self.recorder, a, b)
        result = _WHERE(c, first, second)
        if is_mask(first) and is_mask(second):
            return self.like(_TRUTH(result))
        return self.like(result, whole=whole)


_WHERE: np.ufunc = np.frompyfunc(Term.where, 3, 1)
_TRUTH: np.ufunc = np.frompyfunc(Term.truth, 1, 1)
_NUMBER: np.ufunc = np.frompyfunc(Term.as_number, 1, 1)


def is_mask(terms: np.ndarray) -> bool:
    """True if all terms are truth values."""
    return terms.size > 0 and all(term.boolean for term in terms.flat)


def _watched(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same method; the recorder remembers who calls it and what it raises."""

    @wraps(method)
    def call(self: "Traced", *args: Any, **kwargs: Any) -> Any:
        recorder = lines_of(self).recorder
        recorder.note_place()
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:
            recorder.failed(error)
            raise

    return call


def _rearranging(name: str) -> Callable[..., Any]:
    """A method that only moves entries: numpy's own, on the terms."""

    def method(self: "Traced", *args: Any, **kwargs: Any) -> "Traced":
        moved = getattr(terms_of(self), name)(*args, **kwargs)
        return lines_of(self).like(moved, whole=is_whole(self))

    method.__name__ = name
    return _watched(method)


def _as_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method that numpy also has as a function."""

    def method(self: "Traced", *args: Any, **kwargs: Any) -> "Traced":
        return function(self, *args, **kwargs)

    method.__name__ = function.__name__
    return _watched(method)


def _refused(what: str, why: str) -> Callable[..., Any]:
    """A method that only says so."""

    def method(self: "Traced", *args: Any, **kwargs: Any) -> NoReturn:
        lines_of(self).recorder.refuse(what, why)

    return method


class Traced(NDArrayOperatorsMixin):
    """An array of terms that behaves like an array of float64, or a number of float64.

    Truth values are of dtype bool, and what numpy makes of them in int64 is of that.

    Views share their terms, so that assignments do what they do in numpy. It says that its
    class is numpy's, for functions that check their argument. Its terms and its recorder
    are not attributes: see `terms_of` and `lines_of`.

    Example:
        >>> recorder = Recorder()
        >>> x = Traced.entries(recorder, seq_len=2, d_model=1)
        >>> x.sum(-2, keepdims=True).shape
        (1, 1, 1)
        >>> [node.op for node in recorder.nodes]
        ['x', 'x', 'add']
    """

    __slots__ = ("__weakref__", "_lines", "_terms", "_whole")
    __array_priority__ = 0.0

    def __init__(
        self, terms: np.ndarray, recorder: Recorder, *, whole: bool = False
    ) -> None:
        """Wrap an array of terms; the array itself, not a copy."""
        object.__setattr__(self, "_terms", terms)
        object.__setattr__(self, "_whole", whole)
        object.__setattr__(self, "_lines", Lines(recorder))

    @classmethod
    def entries(
        cls, recorder: Recorder, seq_len: int, d_model: int, batch: int = 1
    ) -> "Traced":
        """The input, shape (batch, n, d). Its sequences are tokens one after the other."""
        terms = np.empty((batch, seq_len, d_model), dtype=object)
        for b, j, i in np.ndindex(terms.shape):
            terms[b, j, i] = recorder.entry(b * seq_len + j, i)
        return cls(terms, recorder)

    @property
    def __class__(self) -> type[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """numpy.ndarray or numpy.float64, for functions that check their argument."""
        return _kind(self)

    def __getattribute__(self, name: str) -> Any:
        """What numpy has and is known here; the rest is refused, or does not exist."""
        theirs = _kind(self)
        if name not in OF_NUMPY[theirs]:
            msg = f"'numpy.{theirs.__name__}' object has no attribute {name!r}"
            raise AttributeError(msg)
        if name not in KNOWN:
            lines_of(self).recorder.refuse(*CONVERSIONS.get(name, (f"x.{name}", UNKNOWN)))
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refused, whether numpy has it or not."""
        lines_of(self).recorder.refuse(f"The assignment to x.{name}", UNKNOWN)

    def __dir__(self) -> list[str]:
        return dir(_kind(self))

    @_watched
    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        """A function of numbers, entry by entry, or its reduction."""
        lines = lines_of(self)
        refuse = lines.recorder.refuse
        known = UFUNCS.get(ufunc) or COMPARISONS.get(ufunc) or LOGIC.get(ufunc)
        if known is None:
            refuse(f"The operation {ufunc.__name__}", UNKNOWN)
        if method not in {"__call__", "reduce", "accumulate", "outer"}:
            refuse(f"The method {ufunc.__name__}.{method}", UNKNOWN)
        given = kwargs.pop("dtype", None)
        check_dtype(lines.recorder, given)
        if "initial" in kwargs:
            first = bool(kwargs["initial"]) if ufunc in LOGIC else kwargs["initial"]
            kwargs["initial"] = lines.recorder.term(first)
        places = [place for place in kwargs.pop("out", ()) if place is not None]
        for place in places:
            if type(place) is not Traced:
                refuse(
                    f"The result of {ufunc.__name__} in an array of numbers",
                    "Entries of x have no value yet; begin with np.zeros_like(x)",
                )
        run = getattr(known, method)
        terms = [lines.lift(value) for value in inputs]
        counted = ufunc is np.add and all(is_mask(array) for array in terms)
        whole = ufunc in UFUNCS and (check_wide(lines.recorder, *inputs) or counted)
        whole = whole and given is None and ufunc not in FLOATING
        small = ufunc is np.power and is_mask(terms[0])  # mask ** 2 is of int8
        rounds = ufunc is np.reciprocal or not _is_integer(kwargs.get("initial"))
        if whole and (small or rounds):
            refuse(f"The operation {ufunc.__name__} on integers", "Make them float before")
        _check_masks(lines.recorder, ufunc, method, terms, places)
        if not places or _is_scalar(places[0]):  # numpy's scalars are replaced, not changed
            terms = [_NUMBER(array) for array in terms] if counted else terms
            return lines.like(run(*terms, **kwargs), whole=whole)
        if any(is_whole(place) for place in places) and not whole:
            refuse(f"The result of {ufunc.__name__} in an array of integers", NO_ROUNDING)
        run(*terms, out=tuple(terms_of(place) for place in places), **kwargs)
        return lines.checked(places[0], whole=whole)

    @_watched
    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        """A function of arrays."""
        lines, known = lines_of(self), FUNCTIONS.get(func)
        if known is None:
            name = f"{func.__module__}.{func.__name__}"
            lines.recorder.refuse(f"The function {name}", UNKNOWN)
        return known(lines, *args, **kwargs)

    @_watched
    def __getitem__(self, key: Any) -> "Traced":
        """A view or a copy, as in numpy."""
        _check_key(lines_of(self).recorder, key)
        return lines_of(self).like(terms_of(self)[key], whole=is_whole(self))

    @_watched
    def __setitem__(self, key: Any, value: Any) -> None:
        """Replace entries by terms or numbers."""
        lines, mine = lines_of(self), terms_of(self)
        terms = lines.lift(value)
        if is_mask(mine) and not is_mask(terms):
            lines.recorder.refuse("An assignment of numbers to truth values", NO_MASK)
        if is_whole(self) and not (is_mask(terms) or check_wide(lines.recorder, value)):
            what = "An assignment of numbers to integers"
            lines.recorder.refuse(what, NO_ROUNDING)
        if not is_mask(mine):
            terms = np.asarray(_NUMBER(terms), dtype=object)
        single = terms[()] if terms.ndim == 0 else terms
        if type(key) is Traced and terms.ndim == 0 and _fits(terms_of(key), mine):
            if _overlaps(terms_of(key), mine):
                why = "numpy reads it while it changes; take mask.copy()"
                lines.recorder.refuse("A mask that lies beside what it selects", why)
            condition = terms_of(key).reshape(key.shape + (1,) * (mine.ndim - key.ndim))
            chosen = _WHERE(condition, single, mine)
            mine[...] = _TRUTH(chosen) if is_mask(mine) else chosen
            return
        _check_key(lines.recorder, key)
        mine[key] = single  # pyright: ignore[reportCallIssue, reportArgumentType]

    @_watched
    def __len__(self) -> int:
        return len(terms_of(self))

    @_watched
    def __iter__(self) -> Iterator["Traced"]:
        return (self[k] for k in range(len(terms_of(self))))

    @_watched
    def __hash__(self) -> int:
        """numpy's numbers have one, its arrays have not."""
        if not _is_scalar(self):
            msg = "unhashable type: 'numpy.ndarray'"
            raise TypeError(msg)
        lines_of(self).recorder.refuse("The hash of an entry of x", NO_NUMBER)

    def __copy__(self) -> "Traced":
        """A copy of the array, of the same terms."""
        return self.copy()

    def __deepcopy__(self, memo: Any) -> "Traced":
        """The same as a copy: terms do not change."""
        return self.copy()

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return terms_of(self).shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return terms_of(self).ndim

    @property
    def size(self) -> int:
        """The number of entries."""
        return terms_of(self).size

    @property
    def dtype(self) -> "np.dtype[Any]":
        """What the function will be given: float64, bool, or int64."""
        if is_mask(terms_of(self)):
            return np.dtype(bool)
        return np.dtype(np.int64 if is_whole(self) else np.float64)

    @property
    def T(self) -> "Traced":
        """The axes in reverse order."""
        return lines_of(self).like(terms_of(self).T, whole=is_whole(self))

    @property
    def mT(self) -> "Traced":
        """The last two axes exchanged."""
        return self.swapaxes(-1, -2)

    @_watched
    def astype(self, dtype: Any, **kwargs: Any) -> "Traced":
        """The same numbers, if they would stay float64; truth values and integers as those.

        With copy=False it may be the array itself.
        """
        kind, lines = np.dtype(dtype), lines_of(self)
        if kind != self.dtype:
            kwargs["copy"] = True
        terms = terms_of(self).astype(object, **kwargs)
        if kind.kind in "iuf" and (is_mask(terms) or is_whole(self)):
            whole = check_wide(lines.recorder, kind)
            return lines.like(_NUMBER(terms) if is_mask(terms) else terms, whole=whole)
        check_dtype(lines.recorder, dtype)
        return lines.like(terms)

    @_watched
    def sort(self, axis: int = -1) -> None:
        """Sort in place."""
        self[...] = np.sort(self, axis=axis)  # pyright: ignore[reportArgumentType, reportCallIssue]

    copy = _rearranging("copy")
    diagonal = _rearranging("diagonal")
    flatten = _rearranging("flatten")
    ravel = _rearranging("ravel")
    repeat = _rearranging("repeat")
    reshape = _rearranging("reshape")
    squeeze = _rearranging("squeeze")
    swapaxes = _rearranging("swapaxes")
    take = _rearranging("take")
    transpose = _rearranging("transpose")

    all = _as_function(np.all)
    any = _as_function(np.any)
    clip = _as_function(np.clip)
    cumprod = _as_function(np.cumprod)
    cumsum = _as_function(np.cumsum)
    dot = _as_function(np.dot)
    max = _as_function(np.max)
    mean = _as_function(np.mean)
    min = _as_function(np.min)
    prod = _as_function(np.prod)
    std = _as_function(np.std)
    sum = _as_function(np.sum)
    trace = _as_function(np.trace)
    var = _as_function(np.var)


terms_of: Callable[[Traced], np.ndarray] = vars(Traced)["_terms"].__get__
"""The terms, a numpy array of objects."""

is_whole: Callable[[Traced], bool] = vars(Traced)["_whole"].__get__
"""Whether numpy has int64 there."""

lines_of: Callable[[Traced], Lines] = vars(Traced)["_lines"].__get__
"""What the array belongs to."""

_AS_NUMBERS = (
    "The conversion of x to an array of numbers (np.asarray)",
    f"{NO_NUMBER}; use np.stack for lists, x.copy() for copies",
)
_AS_TEXT = ("The text of x (print, repr, str, format)", NO_NUMBER)
CONVERSIONS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("__array__", "__array_interface__", "__array_struct__"), _AS_NUMBERS),
    **dict.fromkeys(("__buffer__", "__dlpack__"), _AS_NUMBERS),
    **dict.fromkeys(("__repr__", "__str__", "__format__"), _AS_TEXT),
    "__bool__": ("A condition on x (bool, if, and, or)", NO_BRANCHES),
    "__float__": ("The conversion float(x)", NO_NUMBER),
    "__int__": ("The conversion int(x)", NO_NUMBER),
    "__complex__": ("The conversion complex(x)", NO_NUMBER),
    "__index__": ("An entry of x as an index", NO_NUMBER),
    "__contains__": ("The question whether a number is in x", NO_BRANCHES),
}
"""What would need a value of x, and why it is refused."""

OF_NUMPY: dict[type, frozenset[str]] = {
    kind: frozenset(dir(kind)) for kind in (np.ndarray, np.float64, np.int64, np.bool_)
}
"""What numpy's arrays and numbers have."""

_OF_PYTHON = frozenset({
    "__class__", "__class_getitem__", "__delattr__", "__dir__", "__doc__",
    "__getattribute__", "__hash__", "__init__", "__init_subclass__", "__module__",
    "__new__", "__setattr__", "__subclasshook__",
})  # fmt: skip
KNOWN: frozenset[str] = _OF_PYTHON | {
    name for base in (Traced, NDArrayOperatorsMixin) for name in vars(base)
}
"""What a traced array has of it."""


def _refuse_the_rest() -> None:
    """Python looks up special methods in the class: there they are refused by name."""
    for name in frozenset(CONVERSIONS).union(*OF_NUMPY.values()) - KNOWN:
        if name.startswith("__"):
            reason = CONVERSIONS.get(name, (f"x.{name}", UNKNOWN))
            setattr(Traced, name, _refused(*reason))


_refuse_the_rest()


_PLAIN = frozenset({"__call__", "outer"})


def _check_masks(
    recorder: Recorder,
    ufunc: np.ufunc,
    method: str,
    terms: list[np.ndarray],
    places: list[Traced],
) -> None:
    """Refuse what numpy does otherwise with truth values than with 1 and 0."""
    masks = [is_mask(array) for array in terms]
    logic, compares = ufunc in LOGIC, ufunc in COMPARISONS
    wrong = not all(masks) if logic else any(masks) if compares else all(masks)
    if ufunc is np.add and method == "reduce" and not places:  # numpy counts
        wrong = False
    if compares and (places or method not in _PLAIN):
        wrong = True
    if wrong or any(is_mask(terms_of(place)) != logic for place in places):
        recorder.refuse(f"The operation {ufunc.__name__} with truth values", NO_MASK)


def _check_key(recorder: Recorder, key: Any) -> None:
    keys = key if isinstance(key, tuple) else (key,)
    if any(type(part) is Traced for part in keys):
        why = "How many entries that has depends on x; use np.where(condition, a, b)"
        recorder.refuse("An index or a mask made from x", why)


def _is_integer(initial: Term | None) -> bool:
    return initial is None or (initial.value is not None and initial.value.denominator == 1)


def _overlaps(key: np.ndarray, terms: np.ndarray) -> bool:
    """True where two arrays share entries, but at other places."""
    same = key.ctypes.data == terms.ctypes.data and key.strides == terms.strides
    return not same and np.shares_memory(key, terms)


def _fits(key: np.ndarray, terms: np.ndarray) -> bool:
    """True for a mask of the array's first axes."""
    return is_mask(key) and key.shape == terms.shape[: key.ndim]


def _kind(array: Traced) -> type[Any]:
    """The class that it has in numpy."""
    if not _is_scalar(array):
        return np.ndarray
    if is_mask(terms_of(array)):
        return np.bool_
    return np.int64 if is_whole(array) else np.float64


def _is_scalar(array: Traced) -> bool:
    terms = terms_of(array)
    return terms.ndim == 0 and not terms.flags.writeable


def _single(term: Term) -> np.ndarray:
    terms = np.empty((), dtype=object)
    terms[()] = term
    return terms
