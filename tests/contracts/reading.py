"""What every reading of a network must do: a subclass of this class buys the battery.

A reading proves from the weights alone. What a file says beside them, the kinds and names
of stages and a program, are hints: they may cost the proof and never change a bound.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any, ClassVar, get_args

import numpy as np
import pytest
from scipy.stats import qmc

import everyformer as ef
from everyformer.certify.forms import FORMS, form_of
from everyformer.certify.hypotheses import FLOAT64, Kind
from everyformer.certify.proof import Proof
from everyformer.certify.prove import cells_of, prove, prove_everywhere
from everyformer.certify.reading import Read
from everyformer.certify.weights import Weights
from everyformer.construct.certificates import as_stored, certify
from everyformer.errors import CertificateError
from everyformer.files.description import StageKind
from everyformer.targets.box import Grid
from everyformer.targets.target import Target

EXPONENTS = (Fraction(1), Fraction(2), None)
"""p; None for the supremum."""

POINTS, SAMPLING = 2**13, 1.01
"""A mean over so many points may be larger than the distance by such a factor."""


@cache
def _built(target: Target, method: ef.Method, size: float) -> ef.Built:
    if isinstance(size, int):
        return ef.construct(target, grid=size, method=method)
    return ef.construct(target, tol=size, method=method)


@cache
def _stored(target: Target, method: ef.Method, size: float) -> Weights:
    return as_stored(_built(target, method, size).network)


class ReadingContract:
    """A form of networks, and one network of it.

    Attributes:
        read: The form; None for the reading of programs, which is not by cells.
        method: Builds a network of the form.
        target: f.
        size: A grid, or a tolerance.
        supremum: Whether p = infinity can be proved.
        steered: Whether it looks at the kinds of stages, or at the program.
    """

    read: ClassVar[Read | None]
    method: ClassVar[ef.Method]
    target: ClassVar[Target]
    size: ClassVar[float]
    supremum: ClassVar[bool]
    steered: ClassVar[bool]

    @classmethod
    def built(cls) -> ef.Built:
        return _built(cls.target, cls.method, cls.size)

    @classmethod
    def weights(cls) -> Weights:
        return _stored(cls.target, cls.method, cls.size)

    @classmethod
    def grid(cls) -> int | None:
        plan = cls.built().plan
        return None if plan.whole else plan.cells

    def proof(
        self, weights: Weights, p: Fraction | None = Fraction(2), cells: int | None = None
    ) -> Proof:
        """What is proved of f and these weights, on this grid or on that of the plan."""
        f, box, K = self.target.expression, self.target.domain, cells or self.grid()
        assert f is not None
        if K is None:
            return prove_everywhere(weights, box, f, p)
        grid = Grid(K, weights.seq_len, box)
        examined = cells_of(weights, box, K, f, equivariant=False)
        return prove(weights, examined, f, p, grid=grid)

    def sampled(self, network: ef.Network, p: Fraction | None) -> float:
        """d_p(f, g) at quasi-random points: bounds are within a percent of it."""
        n, d, box = self.target.seq_len, self.target.d_model, self.target.domain
        cube = qmc.Sobol(n * d, bits=53, rng=1).random(POINTS).reshape(-1, n, d)
        x = np.asarray(box.lows) + cube * (np.asarray(box.highs) - np.asarray(box.lows))
        gap = np.abs(network(x) - self.target(x))
        if p is None:
            return float(gap.max())
        mean = (gap ** float(p)).sum(axis=(1, 2)).mean()
        return float((mean * float(box.volume(n))) ** (1 / float(p)))

    def test_it_reads_its_own_networks(self) -> None:
        """By what they are: hints take no part in the choice."""
        own = type(self).read
        honest = self.proof(self.weights())
        assert not honest.obstacles
        assert honest.real is not None
        assert honest.float64 is not None
        if own is None:
            return
        for weights in (self.weights(), unsaid(self.weights())):
            assert [read for read in FORMS if read(weights) is not None] == [own]
            assert form_of(weights) == own(weights)

    def test_others_are_not_of_its_form(self) -> None:
        """None, or for programs, an obstacle: nothing is proved of what is not its own."""
        own = type(self).read
        for other in ReadingContract.__subclasses__():
            if other is type(self) or other.read is None:
                continue
            if own is not None:
                assert own(other.weights()) is None
                continue
            stopped = self.proof(other.weights())
            assert stopped.real is stopped.float64 is None
            assert "no program" in stopped.obstacles[0].why

    def test_false_hints_change_no_bound(self) -> None:
        """They are Undecided, or not looked at: then the proof is the same to the bit."""
        honest, stopped = self.proof(self.weights()), 0
        for told in false_hints(self.weights()):
            found = self.proof(told)
            if found.real is not None or found.float64 is not None:
                assert found == honest
                continue
            stopped += 1
            assert found.obstacles
            assert found.lower == 0, "a hint refutes nothing"
        assert (stopped > 0) == self.steered

    def test_the_grid_of_a_claim_is_a_hint(self) -> None:
        """Of another grid there is no bound, or a true one."""
        K = self.grid()
        if K is None:
            with pytest.raises(CertificateError, match="of an expression alone"):
                prove_everywhere(self.weights(), self.target.domain, None, None)
            return
        sampled = self.sampled(self.built().network, Fraction(2))
        for cells in {2, K - 1, K + 1, 2 * K}:
            found = self.proof(self.weights(), cells=cells)
            for bound in (found.real, found.float64):
                assert bound is None or sampled <= float(bound.value) * SAMPLING
            assert float(found.lower) ** 0.5 <= sampled * SAMPLING

    def test_tampered_weights_lose_the_old_bound(self) -> None:
        """Every array is changed; where a run is farther than the bound, it is not proved.

        The measured distance is the counterexample; most changes have one.
        """
        network = self.built().network
        real = self.proof(self.weights()).real
        assert real is not None
        old, counterexamples, tried = float(real.value), 0, 0
        arrays = dict(network.arrays())
        for name, array in arrays.items():
            if not array.any():
                continue
            wrong = network.with_arrays({**arrays, name: array * 1.75})
            with np.errstate(over="ignore", invalid="ignore"):
                sampled = self.sampled(wrong, Fraction(2))
            tried += 1
            if not sampled > SAMPLING * old:
                continue
            counterexamples += 1
            found = self.proof(as_stored(wrong))
            for bound in (found.real, found.float64):
                assert bound is None or sampled <= float(bound.value) * SAMPLING, name
        assert counterexamples >= max(2, tried // 2), (counterexamples, tried)

    @pytest.mark.parametrize("p", EXPONENTS, ids=["1", "2", "inf"])
    def test_exponents(self, p: Fraction | None) -> None:
        """Above what is measured, in real arithmetic and as float64 runs it."""
        found = self.proof(self.weights(), p)
        if p is None and not self.supremum:
            assert found.real is found.float64 is None
            assert "p = infinity" in found.obstacles[0].why
            return
        assert found.real is not None
        assert found.float64 is not None
        sampled = self.sampled(self.built().network, p)
        assert sampled <= float(found.float64.value) * SAMPLING
        slack = Fraction(1, 10**6)
        assert found.real.value <= found.float64.value + slack

    def test_hypotheses_are_told(self) -> None:
        """Of float64; of a declared f what was declared, of a traced one nothing."""
        traced = self.proof(self.weights()).hypotheses
        assert FLOAT64 in traced
        assert not any(one.declared for one in traced)
        declared = self.target.untraced()
        assert declared.lipschitz is not None
        K = self.grid()
        if K is None:
            with pytest.raises(CertificateError, match="of an expression alone"):
                certify(self.built().network, declared, K, Fraction(2))
            return
        found = certify(self.built().network, declared, K, Fraction(2))
        kinds = {one.kind for one in found.hypotheses}
        assert {Kind.MODULUS, Kind.VALUES, Kind.FLOAT64} <= kinds
        assert found.is_conditional


def unsaid(weights: Weights) -> Weights:
    """The same numbers, without what a file says beside them."""
    stages = tuple(
        replace(stage, name=f"step {k}", kind=None)
        for k, stage in enumerate(weights.stages)
    )
    return replace(weights, stages=stages, program=None)


def false_hints(weights: Weights) -> Iterator[Weights]:
    """Other kinds and names of stages, and programs that are not that of the network."""
    stages = weights.stages
    for kind in (None, *get_args(StageKind)):
        yield replace(weights, stages=tuple(replace(one, kind=kind) for one in stages))
    for k in range(1, len(stages)):  # the first step is said to come later
        moved = [
            replace(one, kind=None if one is stages[0] else one.kind) for one in stages
        ]
        moved[k] = replace(moved[k], kind=stages[0].kind)
        yield replace(weights, stages=tuple(moved))
    turned = (*stages[1:], stages[0])
    pairs = list(zip(stages, turned, strict=True))
    yield replace(weights, stages=tuple(replace(a, kind=b.kind) for a, b in pairs))
    yield replace(weights, stages=tuple(replace(a, name=b.name) for a, b in pairs))
    nothing: dict[str, Any] = {"blocks": [], "results": []}
    for program in (None, [], "f", nothing, {"blocks": [nothing] * weights.blocks}):
        yield replace(weights, program=program)
