"""From a function and a tolerance to a network with its certificate: the whole way.

method.plans(problem)     construct/method.py and a folder for each method
plan.build(target)        explicit weights
certify(network, target)  the verifier's proof, from the weights alone
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from everyformer.certify.certificate import Certificate
from everyformer.certify.proof import Computing
from everyformer.certify.undecided import Undecided
from everyformer.construct.alternatives import (
    Alternative,
    alternatives,
    cheaper,
    hint,
    not_looked_at,
)
from everyformer.construct.certificates import certify
from everyformer.construct.comparison import Comparison, compare_methods
from everyformer.construct.method import (
    Method,
    Plan,
    check_feasible,
    in_short,
    plan_rows,
    refusal,
)
from everyformer.construct.problem import (
    DEFAULT_MAX_MEMORY,
    Problem,
    Trial,
    check_grid,
    check_tolerance,
    exponent,
    out_of_reach,
)
from everyformer.construct.reach import check_widths, numbers_of_float64
from everyformer.construct.registry import DEFAULT, all_methods, method_of
from everyformer.errors import (
    CertificateError,
    EveryformerError,
    GridError,
    MemoryLimitError,
    TargetError,
    ToleranceError,
)
from everyformer.explorable import Explorable
from everyformer.files.names import NETWORK_FILE
from everyformer.model.cost import Cost, count
from everyformer.model.network import Network
from everyformer.notebook import html_table, short
from everyformer.numerics.limits import check_integer, check_limit, shown
from everyformer.papers import YUN2020, implements
from everyformer.progress import Progress, no_progress
from everyformer.targets.failures import not_a_target
from everyformer.targets.support import check_support
from everyformer.targets.target import Target
from everyformer.verdict import Verdict


@dataclass(frozen=True)
class Built(Explorable):
    """A constructed network and what is known about it.

    Attributes:
        network: The Transformer.
        target: The function it approximates.
        plan: What was planned.
        p: The exponent of d_p; None for the supremum.
        proved: The certificate that chose the plan, if a tolerance was given.
        tried: What was tried in vain before.
    """

    network: Network
    target: Target
    plan: Plan
    p: Fraction | None
    proved: Certificate | None = None
    tried: tuple[Trial, ...] = ()

    @cached_property
    def cost(self) -> Cost:
        """What it costs, counted from the weights."""
        return count(self.network)

    @property
    def program(self) -> str:
        """What each register of a compiled network holds, step by step; "" of others."""
        said = self.network.program
        return "" if said is None else "\n".join(said.listing)

    @cached_property
    def certificate(self) -> Certificate:
        """What is proved of d_p(f, g); made when first asked for."""
        return self.proved or self.certify()

    @cached_property
    def cheaper(self) -> tuple[Alternative, ...]:
        """Methods that meet the same tolerance with far fewer parameters, as planned.

        The tolerance is the one that was given, or the distance that was proved. Nothing is
        built, and what takes long to plan is left out: `compare` plans everything.
        """
        eps = self.certificate.eps
        if eps is None or not self.target.on_box:
            return ()
        problem = Problem(self.target, self.p, tol=eps)
        return cheaper(problem, self.cost.parameters)

    @property
    def hint(self) -> str:
        """What would be much cheaper, as planned, in words; "" for nothing."""
        eps = self.certificate.eps
        found = self.cheaper
        return hint(found, self.cost.parameters, eps) if eps is not None else ""

    def certify(
        self,
        *,
        eps: Fraction | None = None,
        computing: Computing = Computing(),  # noqa: B008
    ) -> Certificate:
        """Prove a bound on d_p(f, g) from the weights.

        Args:
            eps: The distance to claim; by default the bound found, rounded up.
            computing: Where the work runs.
        """
        known = self.plan.known(self.target)
        cells = None if self.plan.whole else self.plan.cells
        return certify(self.network, known, cells, self.p, eps, computing)

    def embedded(self, h: int, m: int, r: int) -> "Built":
        """The same function in T^{h,m,r}; its certificate is made from its own weights.

        Raises:
            InputError: If a size is not an integer or below the network's own.
        """
        wider = self.network.embedded(h, m, r)
        return replace(self, network=wider, proved=None)

    def __repr__(self) -> str:
        """What was built, and what is proved of it so far; nothing is computed."""
        proved = self.proved or self.__dict__.get("certificate")
        told = "" if proved is None else f"\n  {short(proved.headline, 120)}"
        return f"Built({short(self.target.name)}: {in_short(self.plan)}{told})"

    def _repr_html_(self) -> str:
        """The plan and, if there is one already, the certificate, for notebooks."""
        proved = self.proved or self.__dict__.get("certificate")
        below = "" if proved is None else proved.html()
        rows = [row for section in plan_rows(self.plan) for row in section]
        return html_table(f"{self.target.name}: {self.plan.heading}", rows) + below

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the weights and the certificate to a folder, for `verify`."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        self.network.save(place / NETWORK_FILE)
        self.certificate.save(place)


@implements(YUN2020, "Theorem 2", "Theorem 3")
def construct(
    target: Target,
    grid: int | None = None,
    *,
    tol: int | float | None = None,
    p: int | float | Fraction | None = None,
    method: Method | str = DEFAULT,
    max_memory: int | float = DEFAULT_MAX_MEMORY,
    computing: Computing = Computing(),  # noqa: B008
    progress: Progress = no_progress,
) -> Built:
    """Build a Transformer that computes a function.

    Args:
        target: The function.
        grid: K, cells per axis; or
        tol: the distance d_p(f, g) allowed: the first plan of the method is built whose
            certified bound meets it.
        p: The exponent of d_p, math.inf for the supremum; by default the method's own.
        method: A method such as SelectiveShifts(positional=True), or its name.
        max_memory: Bytes that building may need.
        computing: Where certificates are computed.
        progress: Called as progress(what, done, total).

    Raises:
        EveryformerError: If the target, the grid, the tolerance or the method cannot work.
    """
    chosen = method_of(method)
    _check_target(target, chosen)
    norm = exponent(chosen.default_p if p is None else p, supremum=chosen.supremum)
    problem = pose(target, norm, grid, tol, max_memory, computing.workers, progress)
    with numbers_of_float64(problem):
        for plan in planned(chosen, problem):
            built = attempt(plan, problem, computing)
            if built is not None:
                return built
        raise refused(problem)


def planned(method: Method, problem: Problem) -> Iterator[Plan]:
    """The plans of a method; why there are no more, where it says so, is noted as tried."""
    try:
        yield from method.plans(problem)
    except ToleranceError as error:
        problem.tried.append(Trial(method.title, None, None, str(error)))


def refused(problem: Problem) -> EveryformerError:
    """Why there is no network, with the methods that could do, as planned."""
    if problem.tol is None or not problem.target.on_box:
        return out_of_reach(problem)
    could = [str(one) for one in alternatives(problem)]
    return out_of_reach(problem, could, not_looked_at(problem))


def attempt(plan: Plan, problem: Problem, computing: Computing) -> Built | None:
    """The network of a plan, proved to meet the tolerance if there is one; else None.

    What failed is noted in the problem. Where a plan cannot be built, or nothing can be
    proved of f at its size, finer ones of the same label are not tried.

    Raises:
        EveryformerError: If the plan for a given grid cannot be built.
    """
    if any(trial.final and trial.label == plan.label for trial in problem.tried):
        return None

    def failed(outcome: str, *, final: bool = False) -> None:
        parameters = plan.count().parameters
        problem.tried.append(Trial(plan.label, plan.grid, parameters, outcome, final))

    try:
        check_feasible(plan, problem.max_memory)
        if problem.target.expression is None and problem.tol is None:
            problem.target.check()  # with a tolerance, `pose` did
        hopeless = ruled_out(plan, problem)
        if hopeless is not None:
            return failed(hopeless)
        network = plan.build(plan.known(problem.target), problem.progress)
        built = Built(network, problem.target, plan, problem.p, None, tuple(problem.tried))
        if problem.tol is None:
            return built
        proved = built.certify(eps=problem.tol, computing=computing)
    except (CertificateError, GridError, MemoryLimitError) as error:
        if problem.tol is None:
            raise
        return failed(str(error), final=True)
    if proved.verdict is Verdict.PROVED:
        return replace(built, proved=proved)
    return failed(describe_bounds(proved))


def ruled_out(plan: Plan, problem: Problem) -> str | None:
    """Why a plan cannot meet the tolerance, as far as f's tables tell; or None.

    Tables are of the whole box, and say nothing of a region in it.
    """
    if problem.tol is None or problem.target.region is not None:
        return None
    try:
        return plan.too_coarse(problem.errors, problem.tol)
    except (CertificateError, Undecided) as error:
        return f"no bound (target: {str(error).rstrip('.')})"


def describe_bounds(certificate: Certificate) -> str:
    """The larger of the bounds claimed, or what stands in their way."""
    bounds = [certificate.bound, certificate.float64_bound]
    found = [bound for bound in bounds if bound is not None]
    if not found:
        return f"no bound ({'; '.join(str(one) for one in certificate.obstacles)})"
    return f"bound {max(found, key=lambda bound: bound.value).format_value()}"


def plan(
    target: Target,
    grid: int | None = None,
    *,
    tol: int | float | None = None,
    p: int | float | Fraction | None = None,
    method: Method | str = DEFAULT,
) -> Plan:
    """The first plan of a method: what it costs; nothing is built.

    With a tolerance it is the first that `construct` builds: plans that cannot meet it, as
    far as f's tables tell, are passed over.

    Args:
        target: The function.
        grid: K, cells per axis; or
        tol: the distance d_p(f, g) allowed.
        p: The exponent of d_p, math.inf for the supremum; by default the method's own.
        method: A method such as Averaging(variant="narrow"), or its name.

    Raises:
        EveryformerError: If the target, the grid or the method cannot work.
    """
    chosen = method_of(method)
    _check_target(target, chosen)
    norm = exponent(chosen.default_p if p is None else p, supremum=chosen.supremum)
    problem = pose(target, norm, grid, tol)
    with numbers_of_float64(problem):
        for found in planned(chosen, problem):
            if problem.tol is None:
                return found
            why = refusal(found, problem.max_memory) or ruled_out(found, problem)
            if why is None:
                return found
            parameters = found.count().parameters
            problem.tried.append(Trial(found.label, found.grid, parameters, why))
        raise refused(problem)


def compare(
    target: Target,
    tol: int | float,
    *,
    p: int | float | Fraction = 2,
    also: Sequence[Method] = (),
    max_memory: int | float = DEFAULT_MAX_MEMORY,
    workers: int | None = 1,
    progress: Progress = no_progress,
) -> Comparison:
    """Plan every method that applies to a target; nothing is built.

    Args:
        target: The function.
        tol: The distance d_p(f, g) allowed.
        p: The exponent of d_p; math.inf for the supremum, which few methods bound.
        also: Methods besides those that need no more input, such as SparseShifts(pattern).
        max_memory: Bytes that building may need.
        workers: Processes on this machine.
        progress: Called as progress(what, done, total).

    Raises:
        EveryformerError: If the tolerance or the exponent makes no sense, or nothing is
            known of f.
    """
    check_is_target(target)
    if not target.on_box:
        msg = (
            f"{target.name} is to be approximated over a region or all of R^(n x d), and "
            "methods are compared on a box. Construct with one method, such as averaging."
        )
        raise TargetError(msg)
    norm = exponent(p, supremum=True)
    problem = pose(target, norm, None, tol, max_memory, workers, progress)
    with numbers_of_float64(problem):
        return compare_methods(problem, [*all_methods(target), *also])


def _check_target(target: Target, method: Method) -> None:
    """Refuse a function that the method cannot take, or a domain without a proof.

    Raises:
        EveryformerError: With what to do.
    """
    check_is_target(target)
    if target.region is not None and not method.by_cells:
        msg = (
            f"{target.name} is to be approximated over {target.region}, and "
            f"{method.title} is proved on a whole box. Use method='averaging' or "
            "'selective-shift', or leave the region out."
        )
        raise TargetError(msg)
    if target.everywhere and not method.compact_support:
        msg = (
            f"{target.name} has everywhere=True, and networks of {method.title} are not "
            "proved to be 0 outside the box. Use method='averaging', or leave everywhere "
            "out."
        )
        raise TargetError(msg)
    if target.everywhere:
        check_support(target)
    method.check(target)


def check_is_target(target: Target) -> None:
    """Refuse a function, a name or a class in place of a target.

    Raises:
        TargetError: With what to write.
    """
    if not isinstance(target, Target):
        raise not_a_target(target)


def pose(
    target: Target,
    p: Fraction | None,
    grid: int | None,
    tol: int | float | None,
    max_memory: int | float = DEFAULT_MAX_MEMORY,
    workers: int | None = 1,
    progress: Progress = no_progress,
) -> Problem:
    """What is asked for, checked.

    Raises:
        EveryformerError: If the tolerance makes no sense, or nothing is known of f.
    """
    check_is_target(target)
    check_widths(target)
    check_limit("max_memory", max_memory, "bytes")
    if workers is not None:
        check_integer("workers", workers, 1)
    if (grid is None) == (tol is None):
        msg = f"Give either grid or tol; got grid={shown(grid)} and tol={shown(tol)}."
        raise GridError(msg)
    check_grid(grid)
    allowed = None if tol is None else check_tolerance(target, tol)
    if tol is not None and target.expression is None:
        target.check()
    return Problem(target, p, grid, allowed, max_memory, workers, progress)
