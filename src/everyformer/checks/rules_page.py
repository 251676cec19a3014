"""All rules as a page of the documentation."""

import textwrap

from everyformer.checks.rules import RULES

HEAD = """# Rules of `everyformer check`

Made from the rules themselves; `everyformer check --explain CODE` prints one. A rule states
a property "for all weights and inputs" (or, for conditions, "there are weights"). PROVED
comes from the structure of a layer, or from following the operations of a module; REFUTED
from a counterexample, or from structure; the rest is UNKNOWN, with what was measured.
"""


def rules_page() -> str:
    """The page: one section for each rule."""
    parts = [HEAD]
    for rule in RULES:
        title, *sections = (rule.text or "").strip().split("\n\n")
        parts.append(f"## {title.rstrip('.')}\n")
        parts.append(f"`{rule.name}`, {_article(rule.kind)}\n")
        for section in sections:
            heading, _, body = section.partition("\n")
            text = " ".join(textwrap.dedent(body).split())
            parts.append(f"**{heading.rstrip(':')}.** {text}\n")
    return "\n".join(parts)


def _article(kind: str) -> str:
    return {
        "obstacle": "an obstacle: where it holds, a layer is not universal.",
        "condition": "a condition of Theorem 3 of Luo et al. 2022.",
        "measure": "neither an obstacle nor a condition.",
    }[kind]
