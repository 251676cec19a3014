"""An array of terms that numpy's functions accept in place of numbers.

    numpy function or operator -> __array_function__, __array_ufunc__
                               -> the same function on an array of `Term` objects
                               -> their methods, entry by entry -> lines of the recorder

Only what is listed in `array_functions.py` and in `UFUNCS` goes through. All else is
refused by name.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from everyformer.targets.array_functions import FUNCTIONS, check_dtype
from everyformer.targets.recorder import (
    NO_BRANCHES,
    NO_NUMBER,
    UNKNOWN,
    Recorder,
    Term,
    refusal,
    refused,
)

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
}
"""For each function of numbers, the one that does the same to arrays of terms."""

COMPARISONS: frozenset[np.ufunc] = frozenset({
    np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal,
    np.logical_and, np.logical_or, np.logical_not, np.isnan, np.isfinite, np.isinf,
})  # fmt: skip


def _rearranging(name: str) -> Callable[..., "Traced"]:
    """A method that only moves entries: numpy's own, on the terms."""

    def method(self: "Traced", *args: Any, **kwargs: Any) -> "Traced":
        return self.like(getattr(self.terms, name)(*args, **kwargs))

    method.__name__ = name
    return method


def _as_function(function: Callable[..., Any]) -> Callable[..., "Traced"]:
    """A method that numpy also has as a function."""

    def method(self: "Traced", *args: Any, **kwargs: Any) -> "Traced":
        return function(self, *args, **kwargs)

    method.__name__ = function.__name__
    return method


class Traced(NDArrayOperatorsMixin):
    """An array of terms that behaves like an array of float64.

    Views share their terms, so that assignments do what they do in numpy. It says that its
    class is numpy's, for functions that check their argument.

    Attributes:
        terms: The terms, a numpy array of objects.
        recorder: What writes down the operations.

    Example:
        >>> recorder = Recorder()
        >>> x = Traced.entries(recorder, seq_len=2, d_model=1)
        >>> x.sum(-2, keepdims=True)
        Traced(shape=(1, 1, 1))
        >>> [node.op for node in recorder.nodes]
        ['x', 'x', 'add']
    """

    def __init__(self, terms: np.ndarray, recorder: Recorder) -> None:
        """Wrap an array of terms; the array itself, not a copy."""
        self.terms = terms
        self.recorder = recorder

    @classmethod
    def entries(cls, recorder: Recorder, seq_len: int, d_model: int) -> "Traced":
        """The input: a batch of one sequence, shape (1, n, d)."""
        terms = np.empty((1, seq_len, d_model), dtype=object)
        for j, i in np.ndindex(seq_len, d_model):
            terms[0, j, i] = recorder.entry(j, i)
        return cls(terms, recorder)

    @property
    def __class__(self) -> type[np.ndarray]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """numpy.ndarray, for functions that check their argument."""
        return np.ndarray

    def like(self, result: Any) -> Any:
        """Wrap what numpy made of the terms: an array, one term, or several arrays."""
        if isinstance(result, (tuple, list)):
            return type(result)(self.like(piece) for piece in result)
        if isinstance(result, np.ndarray) and all(type(t) is Term for t in result.flat):
            return Traced(result, self.recorder)  # itself: it may be a view
        terms = self.lift(result)
        if terms.ndim == 0:
            terms.flags.writeable = False  # a scalar: see __array_ufunc__
        return Traced(terms, self.recorder)

    def lift(self, value: Any) -> np.ndarray:
        """An array of terms, from a traced array or from numbers."""
        if isinstance(value, Traced):
            self.recorder.term(next(value.terms.flat, 0))
            return value.terms
        given = _single(value) if isinstance(value, Term) else np.asarray(value)
        terms = np.empty(given.shape, dtype=object)
        for place, entry in np.ndenumerate(given):
            terms[place] = self.recorder.term(entry)
        return terms

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        """A function of numbers, entry by entry, or its reduction."""
        known = UFUNCS.get(ufunc)
        if known is None:
            why = NO_BRANCHES if ufunc in COMPARISONS else UNKNOWN
            raise refusal(f"The operation {ufunc.__name__}", why)
        if method not in {"__call__", "reduce", "accumulate", "outer"}:
            raise refusal(f"The method {ufunc.__name__}.{method}", UNKNOWN)
        check_dtype(kwargs.pop("dtype", None))
        if "initial" in kwargs:
            kwargs["initial"] = self.recorder.term(kwargs["initial"])
        places = [place for place in kwargs.pop("out", ()) if place is not None]
        for place in places:
            if not isinstance(place, Traced):
                raise refusal(
                    f"The result of {ufunc.__name__} in an array of numbers",
                    "Entries of x have no value yet; begin with np.zeros_like(x)",
                )
        run = getattr(known, method)
        terms = [self.lift(value) for value in inputs]
        if not places or _is_scalar(places[0]):  # numpy's scalars are replaced, not changed
            return self.like(run(*terms, **kwargs))
        run(*terms, out=tuple(place.terms for place in places), **kwargs)
        return places[0]

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        """A function of arrays."""
        known = FUNCTIONS.get(func)
        if known is None:
            name = f"{func.__module__}.{func.__name__}"
            raise refusal(f"The function {name}", UNKNOWN)
        return known(self, *args, **kwargs)

    def __getitem__(self, key: Any) -> "Traced":
        """A view or a copy, as in numpy."""
        return self.like(self.terms[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        """Replace entries by terms or numbers."""
        terms = self.lift(value)
        self.terms[key] = terms[()] if terms.ndim == 0 else terms

    def __len__(self) -> int:
        """The length of the first axis."""
        return len(self.terms)

    def __iter__(self) -> Iterator["Traced"]:
        """Along the first axis."""
        return (self[k] for k in range(len(self.terms)))

    def __repr__(self) -> str:
        """The shape; the terms are too many."""
        return f"Traced(shape={self.shape})"

    def __copy__(self) -> "Traced":
        """A copy of the array, of the same terms."""
        return self.copy()

    def __deepcopy__(self, memo: Any) -> "Traced":
        """The same as a copy: terms do not change."""
        return self.copy()

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return self.terms.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.terms.ndim

    @property
    def size(self) -> int:
        """The number of entries."""
        return self.terms.size

    @property
    def dtype(self) -> "np.dtype[np.float64]":
        """What the function will be given: float64."""
        return np.dtype(np.float64)

    @property
    def T(self) -> "Traced":
        """The axes in reverse order."""
        return self.like(self.terms.T)

    @property
    def mT(self) -> "Traced":
        """The last two axes exchanged."""
        return self.like(np.swapaxes(self.terms, -1, -2))

    def astype(self, dtype: Any, **kwargs: Any) -> "Traced":
        """A copy, if the numbers would stay float64."""
        check_dtype(dtype)
        return self.copy()

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

    __array__ = refused(
        "The conversion of x to an array of numbers (np.asarray)",
        f"{NO_NUMBER}; use np.stack for lists, x.copy() for copies",
    )
    __bool__ = refused("A condition on x (bool, if, and, or)", NO_BRANCHES)
    __float__ = refused("The conversion float(x)", NO_NUMBER)
    __int__ = refused("The conversion int(x)", NO_NUMBER)
    __complex__ = refused("The conversion complex(x)", NO_NUMBER)
    __index__ = refused("An entry of x as an index", NO_NUMBER)


def _is_scalar(array: Traced) -> bool:
    return array.ndim == 0 and not array.terms.flags.writeable


def _single(term: Term) -> np.ndarray:
    terms = np.empty((), dtype=object)
    terms[()] = term
    return terms
