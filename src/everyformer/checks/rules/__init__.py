"""One file for each rule; `RULES` has them in order of their codes."""

from everyformer.checks.rule import Rule
from everyformer.checks.rules import (
    affine,
    affine_on_equal_tokens,
    attentive,
    causal,
    contextual_gap,
    equal_tokens,
    permutations,
    position_aware,
    reversal,
    right_stochastic,
    tokens_apart,
    zero_to_zero,
)
from everyformer.errors import InputError

RULES: tuple[Rule, ...] = (
    permutations.RULE,
    right_stochastic.RULE,
    equal_tokens.RULE,
    attentive.RULE,
    position_aware.RULE,
    causal.RULE,
    zero_to_zero.RULE,
    contextual_gap.RULE,
    tokens_apart.RULE,
    reversal.RULE,
    affine.RULE,
    affine_on_equal_tokens.RULE,
)


def rule_of(code: str) -> Rule:
    """The rule of a code, such as EF003, or of a name.

    Raises:
        InputError: If no rule has that code.
    """
    for rule in RULES:
        if code.upper() == rule.code or code == rule.name:
            return rule
    known = ", ".join(f"{rule.code} ({rule.name})" for rule in RULES)
    raise InputError(f"There is no rule {code}. The rules: {known}.")
