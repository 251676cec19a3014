"""Prefix tokens that nobody needs to hear are run once, with the same result."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everyformer as ef
from everyformer.errors import NumberKindError
from everyformer.model.prefix import SCORES, is_deaf
from everyformer.model.registers import Registers
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage

n, d, h, m, r, w, P = 2, 1, 1, 2, 3, 5, 4


def network_of(seed: int, share: float) -> ef.Network:
    """Two blocks with random weights, of which about a share is not zero."""
    rng = np.random.default_rng(seed)

    def some(*shape: int) -> np.ndarray:
        return np.where(rng.random(shape) < share, rng.normal(size=shape), 0.0)

    def heads() -> np.ndarray:
        return some(1, h, m, w)

    stages = tuple(
        Stage(
            f"block {number}",
            "test",
            AttentionStack(
                W_Q=heads(),
                W_K=heads(),
                W_V=heads(),
                W_O=some(1, h, w, m),
                b_Q=some(1, h, m),
            ),
            FeedForwardStack(some(1, r, w), some(1, r), some(1, w, r), some(1, w)),
        )
        for number in range(2)
    )
    registers = Registers(
        rng.normal(size=(w, d)),
        rng.normal(size=(n, w)),
        rng.normal(size=(d, w)),
        rng.normal(size=(P, w)),
    )
    spec = ef.ArchitectureSpec(
        *(n, d, h, m, r, "softmax", "relu", False), width=w, num_prefix=P
    )
    return ef.Network(architecture=spec, stages=stages, registers=registers)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.1, 0.2, 0.3, 1.0]))
def test_what_is_not_read_need_not_be_computed(seed: int, share: float) -> None:
    network = network_of(seed, share)
    deaf = is_deaf(network.stages, w)
    assert network.explain().startswith("prefix" if deaf else "literal")
    x = np.random.default_rng(seed).normal(size=(3, n, d))
    expected = network(x, executor="reference")
    np.testing.assert_allclose(network(x), expected, rtol=1e-11, atol=1e-11)
    if share == 1.0:
        assert not deaf
        with pytest.raises(NumberKindError, match="need not attend"):
            network(x, executor="prefix")


def test_the_partition_of_unity_has_a_deaf_prefix() -> None:
    built = ef.construct(ef.targets.prefix_mean(2, 1), grid=2, method="partition")
    assert is_deaf(built.network.stages, built.network.architecture.inner_width)
    x = np.random.default_rng(0).random((5, 2, 1))
    expected = built.network(x, executor="reference")
    np.testing.assert_allclose(built.network(x), expected, rtol=0, atol=1e-14)
    none = built.network(np.empty((0, 2, 1)))
    assert none.shape == (0, 2, 1)


def test_many_sequences_run_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    built = ef.construct(ef.targets.prefix_mean(2, 1), grid=2, method="partition")
    x = np.random.default_rng(0).random((7, 2, 1))
    whole = built.network(x)
    assert SCORES > 1
    monkeypatch.setattr("everyformer.model.prefix.SCORES", 1)
    np.testing.assert_allclose(built.network(x), whole, rtol=0, atol=1e-14)
