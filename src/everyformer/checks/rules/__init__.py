"""One file for each rule; `RULES` has them in order of their codes."""

from everyformer.checks.rule import Rule
from everyformer.checks.rules import (
    attentive,
    causal,
    contextual_gap,
    equal_tokens,
    permutations,
    position_aware,
    right_stochastic,
    zero_to_zero,
)

RULES: tuple[Rule, ...] = (
    permutations.RULE,
    right_stochastic.RULE,
    equal_tokens.RULE,
    attentive.RULE,
    position_aware.RULE,
    causal.RULE,
    zero_to_zero.RULE,
    contextual_gap.RULE,
)
