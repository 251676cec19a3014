"""Verdicts of the checks for a page: answers and findings as words."""

from collections.abc import Sequence
from typing import Any

from everyformer.checks.finding import Finding
from everyformer.checks.universality import Universality
from everyformer.errors import printable


def judgement_data(
    answers: Sequence[Universality], findings: Sequence[Finding]
) -> dict[str, Any]:
    """What was found, a line for each distance and each rule."""
    return {
        "answers": [
            {"verdict": str(one.verdict), "text": printable(str(one))} for one in answers
        ],
        "findings": [
            {
                "code": printable(one.code),
                "name": printable(one.name),
                "verdict": str(one.verdict),
                "kind": one.kind,
                "news": one.news,
                "reason": printable(one.reason),
                "source": printable(one.source),
            }
            for one in findings
        ],
    }
