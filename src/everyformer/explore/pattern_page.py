"""The page of a sparse pattern: graph, matrix, receptive fields, path."""

from everyformer.checks.patterns import PatternReport
from everyformer.errors import PatternError
from everyformer.explore.inline import page_of
from everyformer.explore.judgements import judgement_data
from everyformer.page import Page

MAX_TOKENS = 128
"""Tokens up to which a graph and a matrix can be read."""


def pattern_page(report: PatternReport) -> Page:
    """The page of a pattern that was judged.

    Raises:
        PatternError: If it has too many tokens to be drawn.
    """
    pattern, found = report.pattern, report.assumption_1
    if pattern.n > MAX_TOKENS:
        msg = (
            f"The pattern {pattern.name!r} has n = {pattern.n} tokens; a page draws up to "
            f"{MAX_TOKENS}. Use a smaller -n: the same pattern looks alike."
        )
        raise PatternError(msg)
    tokens = range(pattern.n)
    data = {
        "n": pattern.n,
        "heard": [[part.heard(k).tolist() for k in tokens] for part in pattern.parts],
        "connections": list(pattern.connections),
        "verdict": str(report.verdict),
        "path": None if found.path is None else list(found.path),
        "hops": found.hops,
        "neverMeet": None if found.never_meet is None else list(found.never_meet),
        **judgement_data((report.lp, report.sup), report.findings),
    }
    return page_of("pattern", pattern.name, data)
