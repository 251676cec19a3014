"""What every rule must do: a subclass of this class buys the whole battery."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from everyformer.checks.finding import Counterexample, Finding
from everyformer.checks.following.walk import Followed
from everyformer.checks.replay import replay
from everyformer.checks.rule import SECTIONS, VIOLATED, Rule, judge
from everyformer.checks.rules import rule_of
from everyformer.checks.subject import Subject
from everyformer.errors import FileFormatError
from everyformer.layers.by_name import attention_by_name
from everyformer.model.attention_spec import AttentionSpec
from everyformer.verdict import Verdict

PROVED, REFUTED, UNKNOWN = Verdict.PROVED, Verdict.REFUTED, Verdict.UNKNOWN
N, D, TRIALS = 4, 4, 3


@dataclass(frozen=True)
class Layer:
    """A layer of the library, by its name and settings."""

    name: str
    causal: bool = False
    bias: bool = True

    def make(self) -> Any:
        """It, with its first weights."""
        torch.manual_seed(0)
        sizes = {"seq_len": N, "embed_dim": D, "num_heads": 2}
        return attention_by_name(self.name, **sizes, causal=self.causal, bias=self.bias)


class Box(nn.Module):
    """A module that only runs another."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


class Lying(Box):
    """It runs one module, and says that it is another."""

    def __init__(self, inner: nn.Module, said: AttentionSpec) -> None:
        super().__init__(inner)
        self.said = said

    def spec(self) -> AttentionSpec:
        return self.said


@cache
def judged_once(code: str, layer: Layer) -> tuple[Subject, Finding]:
    """A layer and what a rule says of it, for all tests that ask the same."""
    subject = Subject.of(layer.make(), N, D, "layer")
    return subject, judge(rule_of(code), subject, TRIALS, seed=0)


class RuleContract:
    """A rule, and a layer that does not satisfy it.

    Attributes:
        code: Of the rule.
        violated: REFUTED.
    """

    code: ClassVar[str]
    violated: ClassVar[Layer]

    @property
    def rule(self) -> Rule:
        return rule_of(self.code)

    def subject(self, layer: Layer) -> Subject:
        return Subject.of(layer.make(), N, D, "layer")

    def judged(self, subject: Subject) -> Finding:
        return judge(self.rule, subject, TRIALS, seed=0)

    def test_the_text_has_all_sections(self) -> None:
        text = self.rule.text
        assert text is not None
        places = [text.find(f"\n{section}:\n") for section in SECTIONS]
        assert -1 not in places
        assert places == sorted(places)

    def test_refuted_with_a_reason(self) -> None:
        _, found = judged_once(self.code, self.violated)
        assert found.verdict is REFUTED, found.reason
        assert found.reason
        assert found.source == str(self.rule.source) != ""
        if self.rule.search is not None:
            assert found.how == "counterexample"
            assert found.counterexample is not None

    def test_trials_prove_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither structure nor operations are known: it is measured, and UNKNOWN."""

        def gave_up(*_: object) -> Followed:
            return Followed(None, obstacle="not followed")

        monkeypatch.setattr("everyformer.checks.subject.follow", gave_up)
        found = self.judged(Subject.of(Box(self.unclear().make()), N, D, "box"))
        assert found.verdict is UNKNOWN
        assert found.how == "nothing"

    def unclear(self) -> Layer:
        """A layer without a counterexample."""
        return self.violated


class ProvingRuleContract(RuleContract):
    """A rule, a layer that satisfies it for all weights, and one that does not.

    Attributes:
        satisfied: PROVED.
    """

    satisfied: ClassVar[Layer]

    def unclear(self) -> Layer:
        return self.satisfied

    def test_proved_with_its_source(self) -> None:
        """And measured: no drawn weights violate it on inputs of other seeds."""
        subject = self.subject(self.satisfied)
        found = self.judged(subject)
        assert found.verdict is PROVED, found.reason
        assert found.how in ("structure", "operations")
        assert found.reason
        assert found.source == str(self.rule.source) != ""
        assert found.counterexample is None
        if self.rule.search is None:
            return
        rng = np.random.default_rng(99)
        for X, seed in zip(self.rule.search.inputs(rng, N, D), range(5, 8), strict=False):
            size = self.rule.search.violation(subject.redrawn(seed), X)
            assert size is None or size <= VIOLATED

    def test_a_spec_that_lies_proves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It runs the layer that violates the rule, and says that it is the other."""
        liar = Lying(self.violated.make(), self.satisfied.make().spec())
        found = self.judged(Subject.of(liar, N, D, "liar"))
        assert found.verdict is not PROVED
        if self.rule.search is not None:
            assert found.verdict is REFUTED
            assert "although its spec() says otherwise" in found.reason

    def test_counterexamples_run_again(self, tmp_path: Path) -> None:
        """The layer that satisfies the rule is the negative control."""
        subject, judged = judged_once(self.code, self.violated)
        found = judged.counterexample
        if found is None:
            assert self.rule.search is None
            return
        place = found.save(tmp_path, "layer")
        again = Counterexample.load(place)
        assert np.array_equal(again.input, found.input)
        measured = replay(subject, again)
        assert measured.still_violates
        assert measured.violation_sampled == found.violation_sampled
        assert not replay(self.subject(self.satisfied), again).still_violates
        place.with_suffix(".json").write_text('{"seed": "x"}')
        with pytest.raises(FileFormatError, match="is not a counterexample"):
            Counterexample.load(place)
