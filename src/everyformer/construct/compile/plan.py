"""A compiled network at one accuracy: what it costs, and its bound."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import inf
from typing import ClassVar

from everyformer.certify.bound import Bound
from everyformer.certify.compile.follow import Followed
from everyformer.certify.compile.insides import errors_at
from everyformer.certify.compile.prove import error_of, read_program
from everyformer.certify.compile.untold import Untold
from everyformer.certify.undecided import Undecided
from everyformer.construct.certificates import as_stored
from everyformer.construct.compile.lowering.emit import Compiled, emit
from everyformer.construct.compile.lowering.knots import LARGEST_MEAN
from everyformer.construct.compile.precision import Precision, kinds_of
from everyformer.construct.compile.program import Program
from everyformer.construct.compile.ranges import steepness
from everyformer.construct.method import Count, Plan, as_text, plan_table
from everyformer.construct.problem import Problem
from everyformer.construct.table_error import TableErrors
from everyformer.errors import ToleranceError
from everyformer.model.compiled import CompiledProgram
from everyformer.model.cost import count
from everyformer.model.network import Network
from everyformer.numerics.rationals import format_up, power_up
from everyformer.progress import Progress, no_progress
from everyformer.targets.target import Target

FINEST = Fraction(1, 10**14)
"""No gadget is asked for more than this."""

STEADY = (LARGEST_MEAN, 64.0, 8.0, 1.1)
"""How much knots may magnify rounding; at last hardly at all, which takes more of them."""

ATTEMPTS = 16

STALLED, FASTER = Fraction(19, 20), 8
"""Of an attempt that is hardly better than the best the next one is that much finer."""

FAR, FINE = 1000, Fraction(1, 10**8)
"""If the best bound is so many times the tolerance, coarser gadgets are tried from here."""

COARSER = (32, 4)
"""Factors by which the wanted errors of a kind of gadget are raised, if they can be."""

FEWEST = 3
"""Prefix tokens of a network that is not made smaller."""

MOST_TRIES = 10
FEWEST_TRIES = 2
"""Coarser networks that are tried; of long programs fewer."""

SHORT = 64
"""Steps of a program that is planned in a moment."""


@dataclass(frozen=True, repr=False)
class CompilePlan(Plan):
    """The network of a program.

    Attributes:
        target: Name of the target.
        program: What is compiled.
        precision: Wanted errors of gadgets.
        steady: Most that knots may magnify what float64 rounds.
        compiled: The network.
        errors: sup |f - g| in real arithmetic and as float64 runs it, if the program is f.
        scale: (n d vol)^(1/p): d_p is at most that times the supremum; 1 for the supremum.
        objection: Why it cannot be built.
    """

    target: str
    program: Program
    precision: Precision
    compiled: Compiled
    errors: tuple[Fraction, Fraction]
    scale: Fraction
    steady: float = LARGEST_MEAN
    objection: str | None = None

    room: ClassVar[Fraction] = Fraction(1)
    whole: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """The construction in few words."""
        return "compiled program"

    @cached_property
    def _count(self) -> Count:
        cost = count(self.compiled.network)
        tokens = self.program.seq_len + self.compiled.network.architecture.num_prefix
        return Count(
            blocks=cost.blocks,
            attention_layers=cost.attention_layers,
            parameters=cost.parameters,
            nonzeros_limit=cost.nonzeros,
            multiply_adds=tokens * cost.parameters,
            stored_bytes=8 * cost.parameters,
            peak_bytes=64 * cost.parameters,
        )

    def count(self) -> Count:
        """What the network costs."""
        return self._count

    def objections(self) -> list[str]:
        """Why the tolerance is out of reach, if it is."""
        return [] if self.objection is None else [self.objection]

    def planned_bound(self, errors: TableErrors | None) -> Bound:
        """The verifier's bound of this network, if its program is f."""
        return Bound(max(self.errors) * self.scale, "every step", "compile")

    def build(self, target: Target, progress: Progress = no_progress) -> Network:
        """The network."""
        return self.compiled.network

    def rows(self) -> Iterator[tuple[str, str]]:
        """Sizes, the accuracy and the planned bounds."""
        spec = self.compiled.network.architecture
        yield "registers of a token", str(spec.width)
        yield "prefix tokens", str(spec.num_prefix)
        yield "heads, at most", str(spec.num_heads)
        yield "hidden units, at most", str(spec.d_ff)
        yield (
            "accuracy of a function of one number",
            (f"{float(self.precision.of('function')):.1e}"),
        )
        real, run = self.errors
        yield "planned bound, real arithmetic", format_up(real)
        yield "planned bound, float64", format_up(run)

    def __str__(self) -> str:
        return as_text(plan_table(self, self.target))


def plans_for(program: Program, problem: Problem) -> Iterator[CompilePlan]:
    """The coarsest accuracy whose bound meets the tolerance; else one that says why not.

    The error of the whole is about a multiple of the accuracy of its parts, and what
    float64 loses: so each attempt tells how fine the next one must be.
    """
    assert problem.tol is not None, "a program is compiled for a tolerance"  # noqa: S101
    scale = Fraction(1)
    target = problem.target
    if problem.p is not None:
        entries = target.seq_len * target.d_model
        volume = target.domain.volume(target.seq_len)
        scale = power_up(entries * volume, 1 / problem.p)
    wanted, best = problem.tol / scale, None
    accuracy, steady, refused = min(wanted, Fraction(1, 100)), LARGEST_MEAN, ""
    step = 2
    for attempt in range(ATTEMPTS):
        problem.progress("compile", attempt, ATTEMPTS)
        try:
            plan = followed(program, target, Precision(accuracy), scale, steady)
        except ToleranceError as error:  # a gadget needs more accuracy to be defined
            refused, excess = str(error), Fraction(50)
        else:
            if best is not None and max(plan.errors) > STALLED * max(best.errors):
                step *= FASTER
            if best is None or max(plan.errors) < max(best.errors):
                best = plan
            if max(plan.errors) <= wanted:
                yield cheaper(plan, target, wanted)
                return
            real, run = plan.errors
            if run - real > wanted / 2 and steady > STEADY[-1]:  # rounding is too large
                steady = STEADY[STEADY.index(steady) + 1]
                if real <= wanted / 2 or accuracy <= FINEST:
                    continue
            excess = real / wanted
        finer = max(accuracy / (step * min(max(excess, 1), 10**6)), FINEST)
        if finer >= accuracy or (best is not None and best.errors[0] == 0):
            break
        accuracy = finer
    if best is None:
        raise ToleranceError(refused)
    best = _best_of_coarser(best, target, wanted)
    if max(best.errors) <= wanted:
        yield cheaper(best, target, wanted)
        return
    asked = f"tol = {float(problem.tol):g}"
    if scale != 1:
        asked += f" ({float(wanted):.3g} in the supremum)"
    why = (
        f"method='compile' proves {float(max(best.errors)):.1e} at best for {target.name}, "
        f"more than {asked}: {largest_term(best)}. Raise tol, add to what is under the "
        "root or divided by, or narrow the domain"
    )
    yield replace(best, objection=best.objection or why)


def _best_of_coarser(best: CompilePlan, target: Target, wanted: Fraction) -> CompilePlan:
    """The best of what was tried and of coarser gadgets: finer ones can be worse.

    Knots that float64 has no room for miss by far what fewer of them reach. Gadgets that
    are coarser than the best bound are not tried; of long programs few are. Where all
    attempts missed by far, accuracies between them are tried, and steady knots.
    """
    program, scale = best.program, best.scale
    missed = max(best.errors) > FAR * wanted
    factor = 10 if len(program.steps()) <= SHORT else 1000
    coarsest = Fraction(1, 100)
    steadies = {best.steady, STEADY[-1]} if missed else {best.steady}
    accuracy = factor * (FINE if missed else max(min(wanted, coarsest), FINEST))
    while wanted < max(best.errors) and accuracy <= min(max(best.errors), coarsest):
        for steady in sorted(steadies, reverse=True):
            with suppress(ToleranceError):
                plan = followed(program, target, Precision(accuracy), scale, steady)
                best = min(best, plan, key=lambda one: max(one.errors))
        accuracy *= factor
    return best


def largest_term(plan: CompilePlan) -> str:
    """What keeps a bound from being smaller: the steepest function, or rounding."""
    real, run = plan.errors
    rounds = f"float64 rounds by {float(run - real):.1e}"
    steep = [
        (slope, block, function, t)
        for block, function, t in plan.compiled.functions
        if (slope := steepness(function, t)) > 1
    ]
    if not steep:
        return rounds
    slope, block, function, t = max(steep, key=lambda one: one[0])
    name = function.name if function.power is None else f"pow({function.power})"
    where = f"{name} on [{float(t.low):g}, {float(t.high):g}] in block {block}"
    if slope == inf:
        return f"{where} is infinitely steep at 0"
    own = f"{where} multiplies errors by {slope:.1e}"
    return f"{own}, and {rounds}" if run > 2 * real else own


def cheaper(plan: CompilePlan, target: Target, wanted: Fraction) -> CompilePlan:
    """The plan with coarser gadgets where the bound allows it and fewer numbers do.

    Greedy: all kinds at once and each kind alone, by a large factor first. A network that
    is not smaller is not followed; each that is taken has been.
    """
    program, scale, steady = plan.program, plan.scale, plan.steady
    if plan.compiled.network.architecture.num_prefix <= FEWEST:
        return plan
    tries = max(FEWEST_TRIES, MOST_TRIES - len(program.steps()) // 8)
    for kinds in kinds_of(program):
        for factor in COARSER:
            tries -= 1
            if tries < 0:
                return plan
            precision = plan.precision.coarser(kinds, factor)
            try:
                compiled = emit(program, precision, steady)
            except ToleranceError:
                continue
            if count(compiled.network).parameters >= plan.count().parameters:
                continue
            found = followed(program, target, precision, scale, steady, compiled)
            if found.objection is None and max(found.errors) <= wanted:
                plan = found
                break
    return plan


def named(compiled: Compiled, target: Target) -> Compiled:
    """The network, with what it says of itself for the verifier and for people."""
    box = target.domain
    said = CompiledProgram(
        target.name,
        box.lows,
        box.highs,
        compiled.claims,
        tuple(compiled.listing.splitlines()),
    )
    return replace(compiled, network=replace(compiled.network, program=said))


def _with_errors(compiled: Compiled, found: Followed) -> Compiled:
    """The network, with intervals and errors of the steps that it tells."""
    said = compiled.network.program
    assert said is not None, "a compiled network has a program"  # noqa: S101
    errors = errors_at(found, ((step.slot, step.reads) for step in compiled.steps))
    steps = tuple(
        replace(step, low=low, high=high, e=e, r=r)
        for step, (low, high, e, r) in zip(compiled.steps, errors, strict=True)
    )
    network = replace(compiled.network, program=replace(said, steps=steps))
    return replace(compiled, network=network)


def followed(
    program: Program,
    target: Target,
    precision: Precision,
    scale: Fraction,
    steady: float = LARGEST_MEAN,
    emitted: Compiled | None = None,
) -> CompilePlan:
    """The plan with one precision, with the bound that the verifier finds.

    Raises:
        ToleranceError: If a gadget cannot be built with it.
    """
    compiled = named(emitted or emit(program, precision, steady), target)
    why: str | None = None
    try:
        found = read_program(as_stored(compiled.network), target.domain, Untold())
        errors = error_of(found, run=False), error_of(found, run=True)
        compiled = _with_errors(compiled, found)
    except (Undecided, OverflowError) as error:
        errors = (Fraction(2**64), Fraction(2**64))
        why = f"the verifier cannot follow the network ({error})"
    return CompilePlan(
        target.name, program, precision, compiled, errors, scale, steady, why
    )
