"""Other methods for the same tolerance: planned and counted, nothing is built.

After a construction it says what would be much cheaper, after a refusal what could do. So
it looks only at what is planned in a moment; `compare` looks at everything.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from everyformer.certify.bound import Bound
from everyformer.certify.certificate import format_decimal
from everyformer.construct.method import Method, Plan, refusal
from everyformer.construct.problem import Problem
from everyformer.construct.registry import METHODS, all_methods
from everyformer.construct.table_error import TableErrors
from everyformer.errors import EveryformerError
from everyformer.numerics.limits import format_count

QUICK_CELLS = 2**15
"""Cells that are looked at for a hint."""

MUCH = 4
"""What has so many times fewer parameters is worth a hint."""

SHOWN = 3
"""Alternatives that are named."""


@dataclass(frozen=True)
class Alternative:
    """A method that would do, as planned.

    Attributes:
        method: With its settings.
        plan: The first of its plans whose planned bound meets the tolerance.
        bound: That bound.
    """

    method: Method
    plan: Plan
    bound: Bound

    @property
    def parameters(self) -> int:
        """Numbers in all weights."""
        return self.plan.count().parameters

    @property
    def python(self) -> str:
        """How to ask for it in Python."""
        settings = [f"{key}={value!r}" for key, value in _settings(self.method)]
        if not settings:
            return f'method="{_name(self.method)}"'
        return f"method=ef.{type(self.method).__name__}({', '.join(settings)})"

    @property
    def shell(self) -> str:
        """How to ask for it in the shell."""
        given = [f"--with {key}={_word(value)}" for key, value in _settings(self.method)]
        return " ".join([f"--method {_name(self.method)}", *given])

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "name": self.method.title,
            "python": self.python,
            "shell": self.shell,
            "parameters": self.parameters,
            "planned_bound": self.bound.format_value(),
        }

    def __str__(self) -> str:
        return (
            f"{self.method.title}: {format_count(self.parameters)} parameters, planned "
            f"bound {self.bound.format_value()} ({self.python}, {self.shell})"
        )


def _name(method: Method) -> str:
    return next(name for name, kind in METHODS.items() if type(method) is kind)


def _settings(method: Any) -> list[tuple[str, Any]]:
    """The settings that are not as they are by default."""
    given = [(one, getattr(method, one.name)) for one in fields(method)]
    return [(one.name, value) for one, value in given if value != one.default]


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def alternatives(problem: Problem, fewer_than: int | None = None) -> list[Alternative]:
    """Methods that meet the tolerance as planned, the one with the fewest parameters first.

    Each is there once, with the settings that are cheapest. Constructions that were tried
    in vain are left out, and what takes long to plan.

    Args:
        problem: With a tolerance.
        fewer_than: Only plans with fewer parameters.
    """
    if problem.target.region is not None or problem.target.everywhere:
        return []  # plans are for a box
    tried = {trial.label for trial in problem.tried}
    errors = None if problem.errors is None else problem.errors.limited(QUICK_CELLS)
    found = [
        one
        for method in all_methods(problem.target)
        if (method.supremum or problem.p is not None) and method.is_quick(problem)
        for one in _first(method, problem, errors, fewer_than)
        if one.plan.label not in tried
    ]
    best: dict[str, Alternative] = {}
    for one in sorted(found, key=lambda one: one.parameters):
        best.setdefault(_name(one.method), one)
    return list(best.values())


def not_looked_at(problem: Problem) -> list[str]:
    """Names of methods that are left out because planning them takes long."""
    if problem.target.region is not None or problem.target.everywhere:
        return []
    tried = {trial.label for trial in problem.tried}
    slow = [m for m in all_methods(problem.target) if not m.is_quick(problem)]
    return sorted({_name(method) for method in slow if method.title not in tried})


def _first(
    method: Method, problem: Problem, errors: TableErrors | None, fewer_than: int | None
) -> Iterator[Alternative]:
    """The first plan of a method whose planned bound meets the tolerance, if there is one.

    Nothing that a method or the user's function does may spoil a construction that is
    complete: what fails has no plan.
    """
    assert problem.tol is not None, "methods are compared for a tolerance"  # noqa: S101
    try:
        for plan in method.plans(problem):
            if fewer_than is not None and plan.count().parameters >= fewer_than:
                return
            if refusal(plan, problem.max_memory) is not None:
                return
            allowed = problem.tol * plan.room
            if plan.too_coarse(errors, allowed) is not None:
                continue
            bound = plan.planned_bound(errors)
            if bound is not None and bound <= allowed:
                yield Alternative(method, plan, bound)
                return
    except (EveryformerError, ArithmeticError):
        return


def cheaper(problem: Problem, parameters: int) -> tuple[Alternative, ...]:
    """The cheapest methods with far fewer parameters than a network has."""
    return tuple(alternatives(problem, -(-parameters // MUCH))[:SHOWN])


def hint(found: tuple[Alternative, ...], parameters: int, tol: Fraction) -> str:
    """What would be cheaper, in words; "" for nothing."""
    if not found:
        return ""
    head = (
        f"Much cheaper than {format_count(parameters)} parameters for "
        f"{format_decimal(tol)}, by their plans "
        "(these networks were not built, and nothing was proved of them):"
    )
    return "\n".join([head, *(f"  {one}" for one in found)])
