"""Read-in, read-out and prefix tokens, the same in every way to run a network."""

from pathlib import Path

import numpy as np
import pytest

import everyformer as ef
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.execute import cpu
from everyformer.model.execute.pack import PackedLayers
from everyformer.model.network import Network
from everyformer.model.registers import Registers
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage


def random_network(prefix: int, r: int = 40) -> Network:
    rng = np.random.default_rng(prefix)
    n, d, w, h, m = 3, 2, 5, 2, 2

    def some(*shape: int) -> np.ndarray:
        return rng.normal(size=shape) / 3

    attention = AttentionStack(
        some(1, h, m, w),
        some(1, h, m),
        some(1, h, m, w),
        some(1, h, m, w),
        some(1, h, w, m),
    )
    layer = FeedForwardStack(some(1, r, w), some(1, r), some(1, w, r) / r, some(1, w))
    registers = Registers(
        some(w, d), some(n, w), some(d, w), some(prefix, w) if prefix else None
    )
    spec = ArchitectureSpec(
        *(n, d, h, m, r, "softmax", "relu", False), width=w, num_prefix=prefix
    )
    stages = (Stage("one", "test", attention, layer), Stage("two", "test", attention))
    return Network(spec, stages, registers=registers)


@pytest.mark.parametrize("prefix", [0, 1, 4])
def test_all_ways_to_run_agree(prefix: int, tmp_path: Path) -> None:
    torch, onnx = pytest.importorskip("torch"), pytest.importorskip("onnxruntime")
    network = random_network(prefix)
    x = np.random.default_rng(9).normal(size=(6, 3, 2))
    expected = network(x, executor="reference")
    assert expected.shape == x.shape
    assert np.abs(network(x) - expected).max() < 1e-13
    module = network.to_torch()
    assert np.abs(module(torch.from_numpy(x)).detach().numpy() - expected).max() < 1e-13
    network.to_onnx(tmp_path / "network.onnx")
    session = onnx.InferenceSession(tmp_path / "network.onnx")
    assert np.abs(session.run(None, {"x": x})[0] - expected).max() < 1e-12
    network.save(tmp_path / "network.safetensors")
    again = ef.load(tmp_path / "network.safetensors")
    assert (again(x) == network(x)).all()
    assert network.trace(x)[-1].state.shape == (6, prefix + 3, 5)


def test_by_hand() -> None:
    """Registers of every token are W_in x + start, and the mean counts the prefix."""
    w = 2
    registers = Registers(
        W_in=np.array([[1.0], [0.0]]),
        start=np.array([[0.0, 0.0], [10.0, 0.0]]),
        W_out=np.array([[0.0, 1.0]]),
        prefix=np.array([[7.0, 0.0]]),
    )
    nothing = np.zeros((1, 1, 1, w))
    mean = AttentionStack(
        W_Q=nothing,
        b_Q=np.zeros((1, 1, 1)),
        W_K=nothing,
        W_V=np.array([1.0, 0.0]).reshape(1, 1, 1, w),
        W_O=np.array([0.0, 3.0]).reshape(1, 1, w, 1),
    )
    spec = ArchitectureSpec(2, 1, 1, 1, 1, "softmax", "relu", False, "dense", w, 1)
    network = Network(spec, (Stage("mean", "test", mean),), registers=registers)
    x = np.array([[[1.0], [2.0]]])
    assert np.allclose(network(x), 7 + 1 + 12)
    assert network.exact(x).tolist() == [[[20], [20]]]


def test_sizes_that_do_not_belong_together() -> None:
    network = random_network(0)
    with pytest.raises(ValueError, match=r"\(n, d, w, P\)"):
        Network(network.architecture, network.stages)
    with pytest.raises(ValueError, match="W_out has shape"):
        Registers(np.zeros((3, 1)), np.zeros((2, 3)), np.zeros((2, 3)))


def test_kernels_of_any_size_have_the_bits_of_those_of_one_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of single sequences and of chunks, whatever weights are 0."""
    rng = np.random.default_rng(0)
    wide, x = random_network(0, 40), rng.normal(size=(70, 3, 2))
    assert (wide(x, threads=2) == np.stack([wide(one) for one in x])).all()
    n, d, h, m, r = 3, 6, 2, 2, 4
    layers = {
        "attention": (h * (4 * m * d + m), (h, m)),
        "feed-forward": (2 * d * r + r + d, (r,)),
    }
    for kind, (numbers, sizes) in layers.items():
        rows = rng.normal(size=(3, numbers)) * rng.integers(0, 2, (3, numbers))
        run = PackedLayers("drawn", kind, rows, sizes, special=False)
        start = rng.normal(size=(n, d, 1))
        found = [start.copy(), start.copy()]
        for least, z in zip((1, 100), found, strict=True):
            monkeypatch.setattr(cpu, "WIDE_STATE", least)
            cpu.kernel_for(run, n, d, 1)(rows, z)
        assert (found[0] == found[1]).all()
        assert (found[0] != start).any()
