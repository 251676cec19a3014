"""All methods, by name: the one place that knows them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from everyformer.construct.averaging.method import Averaging
from everyformer.construct.comparison import cheapest_first, compare_methods
from everyformer.construct.compile.method import Compile
from everyformer.construct.method import Method, Plan
from everyformer.construct.partition.method import Partition
from everyformer.construct.problem import Problem
from everyformer.construct.shifts.method import SelectiveShifts, SparseShifts, UrpeShifts
from everyformer.errors import GridError, did_you_mean
from everyformer.targets.target import Target


@dataclass(frozen=True)
class Cheapest(Method):
    """Whichever method meets a tolerance with the fewest parameters.

    Attributes:
        also: Methods to compare besides those that need no more input, such as
            SparseShifts(pattern).
    """

    also: Sequence[Method] = ()

    supremum: ClassVar[bool] = True
    takes_grid: ClassVar[bool] = False

    @property
    def title(self) -> str:
        """The method in few words."""
        return "the cheapest"

    def plans(self, problem: Problem) -> Iterator[Plan]:
        """The plans of all methods, the one with the fewest parameters first.

        Raises:
            GridError: If there is no tolerance.
        """
        if problem.tol is None:
            msg = (
                "Methods are compared for a tolerance, not for a grid. Use construct("
                "target, tol=...), or compare(target, tol) (plan --compare) for the table."
            )
            raise GridError(msg)
        methods = [*all_methods(problem.target), *self.also]
        yield from cheapest_first(problem, compare_methods(problem, methods))


METHODS: dict[str, type[Method]] = {
    "selective-shift": SelectiveShifts,
    "urpe": UrpeShifts,
    "sparse": SparseShifts,
    "averaging": Averaging,
    "partition": Partition,
    "compile": Compile,
    "auto": Cheapest,
}
"""Adding a method means its folder, and a line here."""

DEFAULT = "selective-shift"


def method_of(given: "Method | str") -> Method:
    """A method, or the one of that name with its default settings.

    Raises:
        GridError: If there is no such method, or it cannot do without settings.
    """
    if not isinstance(given, str):
        if isinstance(given, type) or not hasattr(given, "plans"):
            said = f"method={given!r:.80} is not a method."
            if isinstance(given, type):
                written = f"ef.{given.__name__}"
                said = f"method={written} is a class, not a method: write {written}()."
            msg = (
                f"{said} Give a name ({names()}) or a value such as "
                "ef.Averaging(variant='narrow')."
            )
            raise GridError(msg)
        return given
    if given not in METHODS:
        near = did_you_mean(given, METHODS)
        raise GridError(f"method={given!r} does not exist.{near} There are {names()}.")
    try:
        return METHODS[given]()
    except TypeError as error:
        kind = METHODS[given].__name__
        msg = f"method={given!r} needs settings ({error}). Give ef.{kind}(...)."
        raise GridError(msg) from error


def names() -> str:
    """The names, for a message."""
    return ", ".join(repr(name) for name in METHODS)


def is_compared(method: Method, target: Target) -> bool:
    """Whether a comparison tries the method anyhow; the cheapest is among those."""
    return type(method) in (Cheapest, *map(type, all_methods(target)))


def all_methods(target: Target) -> list[Method]:
    """What a comparison tries for a target: every method that needs no more input."""
    return [method for kind in METHODS.values() for method in kind.compared(target)]
