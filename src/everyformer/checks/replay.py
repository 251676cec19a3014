"""Measure a counterexample again."""

import math
from dataclasses import dataclass

from everyformer.checks.finding import Counterexample
from everyformer.checks.precision import VIOLATED
from everyformer.checks.rules import rule_of
from everyformer.checks.subject import Subject
from everyformer.errors import InputError


@dataclass(frozen=True)
class Replayed:
    """A counterexample, and what it measures now.

    Attributes:
        example: The counterexample.
        violation_sampled: By how much its rule is violated now.
        violated: Beyond this, that is not rounding.
    """

    example: Counterexample
    violation_sampled: float
    violated: float = VIOLATED

    @property
    def still_violates(self) -> bool:
        """Whether it is a counterexample still."""
        return self.violation_sampled > self.violated

    def __str__(self) -> str:
        """What was measured, and what it was before."""
        rule, was = rule_of(self.example.code), self.example.violation_sampled
        now = self.violation_sampled
        return f"{rule.code} {rule.name}: violated by {now}, was {was}"

    def to_json(self) -> dict[str, object]:
        """A JSON object."""
        return {
            "code": self.example.code,
            "violation_sampled": self.violation_sampled,
            "was": self.example.violation_sampled,
        }


def replay(subject: Subject, example: Counterexample) -> Replayed:
    """Measure a counterexample again, with the weights it was found with.

    Raises:
        InputError: If it cannot be one for this subject or its rule.
    """
    rule = rule_of(example.code)
    if rule.search is None:
        raise InputError(f"{rule.code} has no counterexamples to run again.")
    if example.input.shape != (subject.seq_len, subject.d_model):
        sizes = (subject.seq_len, subject.d_model)
        msg = f"The counterexample has shape {example.input.shape}, the subject takes"
        raise InputError(f"{msg} {sizes}. Give --seq-len and --d-model as they were.")
    if not rule.search.admits(example.input):
        msg = f"This input cannot be a counterexample to {rule.code} {rule.name}"
        raise InputError(f"{msg}. Give the file as `check -o` wrote it.")
    size = rule.search.violation(subject.alone(example.seed), example.input)
    if size is None or not math.isfinite(size):
        msg = f"On this input {rule.code} {rule.name} cannot be measured: {size}"
        raise InputError(f"{msg}. Give the file as `check -o` wrote it.")
    return Replayed(example, float(size), subject.violated)
