"""The contract of a rule, for all of them."""

from typing import Any

from tests.contracts.rule import D, Layer, ProvingRuleContract, RuleContract

from everyformer.checks.rules import RULES
from everyformer.layers import AverageAttention


class TestPermutations(ProvingRuleContract):
    code, satisfied, violated = "EF001", Layer("none"), Layer("t5")


class TestRightStochastic(ProvingRuleContract):
    code, satisfied, violated = "EF002", Layer("t5"), Layer("urpe")


class TestEqualTokens(ProvingRuleContract):
    code, satisfied, violated = "EF003", Layer("rotary"), Layer("shaw-values")


class TestAttentive(ProvingRuleContract):
    code, satisfied, violated = "EF004", Layer("urpe"), Layer("urpe", causal=True)


class TestPositionAware(ProvingRuleContract):
    code, satisfied, violated = "EF005", Layer("urpe"), Layer("t5")


class TestCausal(ProvingRuleContract):
    code, satisfied, violated = "EF006", Layer("urpe", causal=True), Layer("urpe")


class TestZeroToZero(ProvingRuleContract):
    code, satisfied, violated = "EF007", Layer("urpe", bias=False), Layer("urpe")


class TestContextualGap(RuleContract):
    """It says "there are weights", which trials may show, and structure may exclude."""

    code, violated = "EF008", Layer("t5")


class TestTokensApart(ProvingRuleContract):
    code, satisfied, violated = "EF009", Layer("t5", causal=True), Layer("t5")


class TestReversal(ProvingRuleContract):
    code, satisfied, violated = "EF010", Layer("none"), Layer("rotary")


class Mean(Layer):
    def make(self) -> Any:
        return AverageAttention(D)


class TestAffine(ProvingRuleContract):
    code, satisfied, violated = "EF011", Mean("average"), Layer("none", bias=False)


class TestAffineOnEqualTokens(ProvingRuleContract):
    code, satisfied, violated = "EF012", Layer("t5"), Layer("urpe")


def test_every_rule_has_its_contract() -> None:
    proving = ProvingRuleContract.__subclasses__()
    codes = [contract.code for contract in (*proving, TestContextualGap)]
    assert sorted(codes) == [rule.code for rule in RULES]
    assert len({rule.name for rule in RULES}) == len(RULES)
