"""What every construction must do: a subclass of this class buys the whole battery."""

from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import everyformer as ef
from everyformer.construct.method import plan_table, refusal
from everyformer.construct.pipeline import pose
from everyformer.construct.problem import exponent
from everyformer.errors import EveryformerError, MemoryLimitError, ToleranceError
from everyformer.model.stacks import Stage


def spoiled(stage: Stage, factor: float) -> Stage:
    """The stage with its last feed-forward layers, or values, scaled."""
    if stage.feed_forward is not None:
        stack = stage.feed_forward
        return replace(
            stage,
            feed_forward=replace(stack, W_2=stack.W_2 * factor, b_2=stack.b_2 * factor),
        )
    assert stage.attention is not None
    return replace(
        stage, attention=replace(stage.attention, W_O=stage.attention.W_O * factor)
    )


@cache
def _built(target: ef.Target, tol: float, method: ef.Method) -> ef.Built:
    return ef.construct(target, tol=tol, method=method)


class ConstructionContract:
    """A method, a target it can do, and a tolerance it can meet.

    Attributes:
        method: The method.
        target: f.
        tol: Met by one of its first plans.
    """

    method: ClassVar[ef.Method]
    target: ClassVar[ef.Target]
    tol: ClassVar[float]

    @property
    def p(self) -> Fraction | None:
        return exponent(self.method.default_p, supremum=self.method.supremum)

    def built(self) -> ef.Built:
        return _built(self.target, self.tol, self.method)

    def sampled(self, network: ef.Network) -> float:
        """d_p(f, g) by samples; the largest gap, for the supremum."""
        box, rng = self.target.domain, np.random.default_rng(0)
        cube = rng.random((2000, self.target.seq_len, self.target.d_model))
        x = np.asarray(box.lows) + cube * (np.asarray(box.highs) - np.asarray(box.lows))
        gap = np.abs(network(x) - self.target(x))
        if self.p is None:
            return float(gap.max())
        p, volume = float(self.p), float(box.volume(self.target.seq_len))
        return float(((gap**p).sum(axis=(1, 2)).mean() * volume) ** (1 / p))

    def test_a_tolerance_is_met_and_proved(self) -> None:
        built = self.built()
        certificate = built.certificate
        assert certificate.verdict is ef.Verdict.PROVED
        assert certificate.eps == Fraction(str(self.tol))
        run = certificate.float64_bound or certificate.bound
        assert certificate.bound is not None
        assert run is not None
        assert self.sampled(built.network) <= float(run.value) * 1.02

    def test_the_count_is_what_is_built(self) -> None:
        built = self.built()
        count, cost = built.plan.count(), built.cost
        assert (count.blocks, count.parameters) == (cost.blocks, cost.parameters)
        assert count.attention_layers == cost.attention_layers
        assert cost.nonzeros <= count.nonzeros_limit

    def test_the_same_bits_each_time(self) -> None:
        first = dict(self.built().network.arrays())
        again = ef.construct(self.target, tol=self.tol, method=self.method)
        for name, array in again.network.arrays():
            assert np.array_equal(first[name], array)

    def test_plans_are_described(self) -> None:
        problem = pose(self.target, self.p, None, self.tol)
        plan = next(iter(self.method.plans(problem)))
        assert plan.label
        assert plan_table(plan, "f").row_count > 4
        assert plan.to_json()["parameters"] == plan.count().parameters

    def test_files_alone_prove_it(self, tmp_path: Path) -> None:
        built = self.built()
        built.save(tmp_path)
        found = ef.verify(tmp_path)
        assert found.verdict is ef.Verdict.PROVED
        assert found.bound == built.certificate.bound
        x = np.full((1, self.target.seq_len, self.target.d_model), 0.3)
        loaded = ef.load(tmp_path / "network.safetensors")
        assert np.array_equal(loaded(x), built.network(x))

    def test_a_spoiled_network_is_not_proved(self, tmp_path: Path) -> None:
        """Negative control: its values are scaled, and the claim stays."""
        built = self.built()
        network = built.network
        for factor in (0.0, 1.75):
            wrong = replace(
                network, stages=(*network.stages[:-1], spoiled(network.stages[-1], factor))
            )
            if self.sampled(wrong) <= self.tol:
                continue
            certificate = replace(built, network=wrong).certify(eps=Fraction(str(self.tol)))
            assert certificate.verdict is not ef.Verdict.PROVED

    def test_too_little_memory_is_refused(self) -> None:
        with pytest.raises((MemoryLimitError, ToleranceError), match=r"limit of 1\.0 B"):
            ef.construct(self.target, tol=self.tol, method=self.method, max_memory=1)

    def test_plans_end_with_one_that_cannot_be_built(self) -> None:
        problem = replace(pose(self.target, self.p, None, self.tol), max_memory=1)
        plans = list(self.method.plans(problem))
        assert refusal(plans[-1], 1) is not None

    def test_exponents(self) -> None:
        with pytest.raises(EveryformerError, match="not a number >= 1"):
            ef.construct(self.target, tol=self.tol, method=self.method, p=0.5)
        if not self.method.supremum:
            with pytest.raises(EveryformerError, match="p = infinity"):
                ef.construct(self.target, tol=self.tol, method=self.method, p=float("inf"))

    def test_it_is_compared(self) -> None:
        tol = max(self.tol, 0.05)  # others take long where one is exact
        found = ef.compare(self.target, tol, also=[self.method])
        names = [candidate.method.title for candidate in found.candidates]
        assert self.method.title in names
        assert found.candidates[-1].chosen is not None
        assert found.candidates[-1].chosen.bound <= tol
