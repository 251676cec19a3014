"""Every way to run a sparse network obeys its masks."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from tests.plans import constants_of

import everyformer as ef
from everyformer import patterns
from everyformer.construct.pipeline import Built
from everyformer.errors import NumberKindError
from everyformer.files.network_file import SPARSE_VERSION, VERSION, read_arrays
from everyformer.model.forward import attention_layer, hardmax, only_heard, softmax
from everyformer.model.stacks import AttentionStack, Stage
from everyformer.numerics.rationals import exact_array
from everyformer.targets import prefix_mean

PATTERN = patterns.axial(2, 2)


@pytest.fixture(scope="module", params=["softened", "modified"])
def built(request: pytest.FixtureRequest) -> Built:
    softened = request.param == "softened"
    return ef.construct(
        prefix_mean(4, 1), grid=2, method=ef.SparseShifts(PATTERN, softened=softened)
    )


def random_network(hard: bool) -> ef.Network:
    """Two blocks of random attention, three tokens, heads of size 2."""
    rng = np.random.default_rng(3)
    ring = patterns.ring(3)
    spec = ef.ArchitectureSpec(
        *(3, 2, 2, 2, 4),
        normaliser="hardmax" if hard else "softmax",
        activation="relu",
        positional=False,
        pattern=ring,
    )
    row = (2, 2, 2, 2)  # layers, h, m, d
    stack = AttentionStack(
        *(rng.normal(size=size) for size in (row, row[:3], row, row, row)),
        mask=np.stack([ring.parts[0].mask()] * 2),
    )
    return ef.Network(spec, (Stage("two blocks", "random", attention=stack),))


def by_hand(network: ef.Network, x: np.ndarray) -> np.ndarray:
    """head_k = rho[(x_k W_Q - b_Q)(x_A W_K)^T] x_A W_V, A = A_k, token by token."""
    for stage in network.stages:
        stack = stage.attention
        assert stack is not None
        assert stack.mask is not None
        normalise = hardmax if network.architecture.normaliser == "hardmax" else softmax
        for layer in range(stack.layers):
            after = x.copy()
            for s, k in np.ndindex(x.shape[:2]):
                A = np.flatnonzero(stack.mask[layer, k])
                for head in range(stack.W_Q.shape[1]):
                    query = stack.W_Q[layer, head] @ x[s, k] - stack.b_Q[layer, head]
                    keys = x[s, A] @ stack.W_K[layer, head].T
                    values = x[s, A] @ stack.W_V[layer, head].T
                    mixed = normalise(keys @ query) @ values
                    after[s, k] += stack.W_O[layer, head] @ mixed
            x = after
    return x


@pytest.mark.parametrize("hard", [False, True])
def test_all_executors_are_the_definition(hard: bool, tmp_path: Path) -> None:
    network = random_network(hard)
    x = np.random.default_rng(0).normal(size=(70, 3, 2))
    expected = by_hand(network, x)
    masked = network.stages[0].attention
    assert masked is not None
    dense = attention_layer(
        replace(masked, mask=None), 0, x, network.architecture.normaliser
    )
    assert (
        np.abs(dense - attention_layer(masked, 0, x, network.architecture.normaliser)).max()
        > 0.1
    )
    ways = {name: network(x, executor=name) for name in ("reference", "literal")}
    if not hard:
        ways["one by one"] = np.stack([network(one) for one in x[:3]])
    tensor = torch.tensor(x)
    ways["torch"] = network.to_torch()(tensor).detach().numpy()
    ways["torch, unrolled"] = network.to_torch(unroll=True)(tensor).detach().numpy()
    network.to_onnx(tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    ways["onnx"] = np.asarray(session.run(None, {"x": x})[0])
    for name, y in ways.items():
        assert np.abs(y - expected[: len(y)]).max() <= 1e-12, name


def test_exact_evaluation_under_a_mask() -> None:
    """Rationals, int64 and ties: two tokens that tie share, a third is not heard."""
    mask = np.array([[[1, 1, 0], [0, 1, 0], [0, 1, 1]]], dtype=bool)
    one = np.ones((1, 1, 1, 1), dtype=int)
    stack = AttentionStack(one, one[..., 0], one, one, one, mask=mask)
    x = np.array([[[2], [2], [9]], [[1], [5], [7]]])
    expected = [[[4], [4], [18]], [[2], [10], [14]]]  # q = 0 at x = 1: a mean of 1 and 5
    expected[1][0] = [1 + 3]
    spec = ef.ArchitectureSpec(3, 1, 1, 1, 1, "hardmax", "relu", False)
    for kind in (int, Fraction):
        network = ef.Network(spec, (Stage("one", "", attention=stack),))
        y = network.exact(exact_array(x) * kind(1))
        assert y.tolist() == expected
    assert (only_heard(np.array([[3, 4]]), np.array([[True, False]])) == [[3, 2]]).all()


def test_constructed_networks_agree_everywhere(built: Built) -> None:
    network = built.network.in_float64(allow_rounding=True)
    c = constants_of(built.plan)
    x = c.grid.centres(c.grid.all_sequences())
    plain = network(x, executor="reference")
    # Rounded, the modified network writes values as differences to large ids.
    assert np.abs(plain - built.target(x)).max() <= (1e-12 if c.softened else 1e-8)
    if c.softened:
        assert np.array_equal(network(x), plain)
    y = network.to_torch()(torch.tensor(x)).detach().numpy()
    assert np.abs(y - plain).max() <= 1e-12


def test_files_keep_pattern_and_masks(built: Built, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    built.network.save(path)
    header = read_arrays(path).description
    assert header["version"] == SPARSE_VERSION
    again = ef.load(path)
    assert again.architecture == built.network.architecture
    assert again.architecture.pattern == PATTERN
    for (name, a), (_, b) in zip(again.arrays(), built.network.arrays(), strict=True):
        assert (a == b).all(), name
    dense = ef.construct(prefix_mean(2, 1), grid=2)
    dense.network.save(path)
    header = read_arrays(path).description
    assert header["version"] == VERSION
    assert "pattern" not in header["architecture"]


def test_the_module_has_masks_as_buffers(built: Built) -> None:
    module = built.network.to_torch(allow_rounding=True)
    buffers = {name.rpartition(".")[2] for name, _ in module.named_buffers()}
    assert "mask" in buffers
    assert not any("mask" in name for name, _ in module.named_parameters())


def test_the_cost_counts_connections(built: Built) -> None:
    assert built.cost.connections == (8, 8)
    assert built.cost.to_json()["connections"] == (8, 8)
    assert "connections" not in ef.construct(prefix_mean(2, 1), grid=2).cost.to_json()


def test_a_sparse_network_is_not_folded() -> None:
    built = ef.construct(prefix_mean(4, 1), grid=2, method=ef.SparseShifts(PATTERN))
    with pytest.raises(NumberKindError, match="its attention is sparse"):
        built.network(np.zeros((4, 1)), executor="folded")
    assert "folded" not in built.network.explain()


def test_blocks_cycle_through_the_patterns() -> None:
    """A network of the class has the mask of pattern b mod p in block b, and no other."""
    network = ef.construct(
        prefix_mean(4, 1), grid=2, method=ef.SparseShifts(PATTERN)
    ).network
    stages = list(network.stages)
    place = [stage.name for stage in stages].index("chain shifts")
    stack = stages[place].attention
    assert stack is not None
    assert stack.mask is not None
    for mask in (stack.mask[::-1], None):
        stages[place] = replace(stages[place], attention=replace(stack, mask=mask))
        with pytest.raises(ValueError, match="does not have the mask of pattern 1 of 2"):
            replace(network, stages=tuple(stages))
    spec = network.architecture
    with pytest.raises(ValueError, match="for 3 tokens"):
        replace(network, architecture=replace(spec, pattern=patterns.ring(3)))
    wrong = replace(stack, mask=stack.mask[:, :3, :3])
    stages[place] = replace(stages[place], attention=wrong)
    plain = replace(spec, pattern=None)
    with pytest.raises(ValueError, match="masks for 3 tokens"):
        replace(network, architecture=plain, stages=tuple(stages))


def test_masks_that_are_none_are_refused() -> None:
    one = np.ones((1, 1, 1, 1))
    weights = (one, one[..., 0], one, one, one)
    with pytest.raises(ValueError, match=r"token 2 attends to no token"):
        AttentionStack(*weights, mask=np.array([[[True, False], [False, False]]]))
    with pytest.raises(ValueError, match="mask has dtype int64"):
        AttentionStack(*weights, mask=np.ones((1, 2, 2), dtype=np.int64))
    with pytest.raises(ValueError, match="mask has shape"):
        AttentionStack(*weights, mask=np.ones((2, 2, 2), dtype=bool))
