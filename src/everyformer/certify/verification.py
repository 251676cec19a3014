"""The verdict on a certificate, as a value: what was found, in words and as JSON."""

from dataclasses import dataclass
from typing import Any

from everyformer.certify.bound import Bound
from everyformer.certify.certificate import Certificate, Statement
from everyformer.certify.hypotheses import Hypothesis, conditions, headline
from everyformer.certify.presentation import listing
from everyformer.certify.proof import Proof
from everyformer.certify.undecided import quoted
from everyformer.notebook import html_lines, short
from everyformer.verdict import Verdict


@dataclass(frozen=True)
class Verification:
    """The verdict on a certificate.

    Attributes:
        verdict: PROVED, REFUTED or UNKNOWN.
        reasons: Why, the stage first where there is one.
        remarks: What else was seen.
        proof: What was proved, and what that rests on.
        certificate: What the file says. Its claim is judged; nothing else of it counts.
        statement: What was used of f: the file's, or that of the target given.
        given: Whether a target was given. Else f's name is a word of the file.
        contradicted: What is declared of f is contradicted by its own values.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    remarks: tuple[str, ...]
    proof: Proof
    certificate: Certificate
    statement: Statement
    given: bool = False
    contradicted: bool = False

    @property
    def bound(self) -> Bound | None:
        """The bound that was found, in real arithmetic."""
        return self.proof.real

    @property
    def float64_bound(self) -> Bound | None:
        """The bound that was found for float64 runs."""
        return self.proof.float64

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """What the bounds found rest on."""
        return self.proof.hypotheses

    def to_json(self) -> dict[str, Any]:
        """The verdict as a JSON object."""
        bounds = {"bound": self.bound, "float64_bound": self.float64_bound}
        declared = conditions(self.hypotheses)
        return {
            "verdict": str(self.verdict),
            "conditional_on": list(declared),
            "headline": self.headline,
            "claim": self.certificate.claim_json(conditional=bool(declared)),
            "f": {
                "name": self.statement.name if self.given else None,
                "name_in_file": self.certificate.statement.name,
                "known_by": self.statement.kind,
                "from": "target" if self.given else "file",
            },
            "reasons": list(self.reasons),
            "remarks": list(self.remarks),
            **{
                name: None if bound is None else bound.to_json()
                for name, bound in bounds.items()
            },
            "hypotheses": [hypothesis.to_json() for hypothesis in self.hypotheses],
        }

    @property
    def headline(self) -> str:
        """The verdict and the claim, with all that was declared of f."""
        claim = self.certificate.claim(self._name)
        if self.contradicted:
            declared = self.statement.declaration
            claim = f"the declared {declared}, on which the claim rests: {claim}"
        undecided = self.verdict is Verdict.UNKNOWN
        return headline(self.verdict.name, claim, () if undecided else self.hypotheses)

    @property
    def _name(self) -> str:
        return self.statement.name if self.given else "f"

    def describe(self, *, verbose: bool = False) -> str:
        """The verdict, the reasons, what f is, the bounds found and what they assume.

        Args:
            verbose: Show all terms; otherwise tiny ones are folded into one line.
        """
        before, after = self._remarks()
        bounds = listing(self.bound, self.float64_bound, verbose=verbose)
        return "\n".join([self.headline, *before, *bounds.lines(), *after])

    def __str__(self) -> str:
        """The same, with tiny terms folded."""
        return self.describe()

    def _remarks(self) -> tuple[list[str], list[str]]:
        """What is said before the bounds, and after them."""
        before = [f"because {reason}" for reason in self.reasons]
        before.append(describe_f(self.certificate, self.statement, given=self.given))
        after = [f"assumes: {hypothesis}" for hypothesis in self.hypotheses]
        return before, after + [f"note: {remark}" for remark in self.remarks]

    def __repr__(self) -> str:
        """One line; `print` shows the bounds."""
        return f"Verification({short(self.headline, 160)})"

    def _repr_html_(self) -> str:
        """The bounds as a table, for notebooks."""
        before, after = self._remarks()
        bounds = listing(self.bound, self.float64_bound).html(self.headline)
        return bounds + html_lines([*before, *after])


def describe_f(certificate: Certificate, statement: Statement, *, given: bool) -> str:
    """Which function the verdict is about, and on which domain."""
    ways = {
        "expression": ("the expression in the file", "as traced"),
        "modulus": (
            "any function with the values and the modulus in the file",
            "by its values and its declaration",
        ),
        "nothing": ("a function that is not in the file", "of which nothing is known"),
    }
    of_file, of_target = ways[statement.kind]
    if given:
        what = f"f is {statement.name}, {of_target}"
    else:
        what = f"f is {of_file}, called {quoted(statement.name)} by the file"
    n, d = certificate.seq_len, certificate.d_model
    tokens = f"{n} token{'s' * (n > 1)} of {d} number{'s' * (d > 1)}"
    where = "" if certificate.region is None else f", of it {certificate.region.describe()}"
    if certificate.everywhere:
        where = ", and f = 0 outside it"
    return f"where {what}; {tokens} in {certificate.box}{where}"
