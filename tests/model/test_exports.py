"""PyTorch and ONNX give the numbers of `network(x)`."""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tests.plans import constants_of

import everyformer as ef
from everyformer.construct.pipeline import Built
from everyformer.errors import MemoryLimitError, NumberKindError
from everyformer.model import torch_module
from everyformer.targets import prefix_mean, soft_attention

TOLERANCE = 1e-12


def network(name: str) -> Built:
    if name == "theorem 2":
        return ef.construct(soft_attention(3, 1), grid=8)
    if name == "theorem 3":
        target = ef.Target(
            prefix_mean(2, 2).function, 2, 2, domain=[(-1, 1), (0, 3)], lipschitz=1
        )
        return ef.construct(target, grid=4)
    if name == "urpe":
        return ef.construct(prefix_mean(3, 1), grid=4, method="urpe")
    if name == "urpe, modified":
        target = prefix_mean(3, 1)
        return ef.construct(target, grid=2, method=ef.UrpeShifts(softened=False))
    return ef.construct(
        soft_attention(2, 1), grid=4, method=ef.SelectiveShifts(softened=False)
    )


NAMES = ["theorem 2", "theorem 3", "modified", "urpe", "urpe, modified"]


@pytest.fixture(scope="module", params=NAMES)
def built(request: pytest.FixtureRequest) -> Built:
    return network(request.param)


def inputs(built: Built) -> np.ndarray:
    """Random points; none of 200 hits a ramp of width 2^-30."""
    c = constants_of(built.plan)
    low, high = np.asarray(c.grid.box.lows), np.asarray(c.grid.box.highs)
    return low + (high - low) * np.random.default_rng(0).random((200, c.n, c.d))


@pytest.mark.parametrize("unroll", [False, True])
def test_torch_agrees(built: Built, unroll: bool) -> None:
    module = built.network.to_torch(unroll=unroll, allow_rounding=True)
    x = inputs(built)
    y = module(torch.tensor(x).reshape(2, 100, *x.shape[1:])).detach().numpy()
    assert np.abs(y.reshape(x.shape) - built.network(x)).max() <= TOLERANCE
    depth = built.network.blocks if unroll else len(built.network.stages)
    assert len(module.blocks) == depth


def test_state_dict_and_double(built: Built) -> None:
    module = built.network.to_torch(allow_rounding=True)
    other = built.network.to_torch(allow_rounding=True)
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    other.load_state_dict(module.state_dict())
    x = torch.tensor(inputs(built))
    assert torch.equal(other.double()(x), module(x))


def test_gradients_reach_the_weights() -> None:
    module = network("theorem 2").network.to_torch()
    module(torch.tensor(inputs(network("theorem 2"))[:4])).sum().backward()
    grads = [p.grad for p in module.parameters()]
    assert all(g is not None for g in grads)
    assert any(bool((g != 0).any()) for g in grads if g is not None)


def test_gradients_reach_the_gain() -> None:
    built = network("urpe")
    module = built.network.to_torch()
    x = torch.tensor(inputs(built)[:4])
    parameters = dict(module.blocks[0].named_parameters())
    assert {"gain", "b_V"} <= set(parameters)
    module.blocks[0](x).sum().backward()
    # The output moves by W_O / n times the tokens that see an offset: n - |k|.
    W_O, n = parameters["W_O"][0, 0, 0, 0].item(), 3
    expected = [len(x) * W_O / n * (n - abs(k)) for k in range(1 - n, n)]
    grad = parameters["gain"].grad
    assert grad is not None
    assert np.allclose(grad[0, 0].numpy(), expected)


def test_float32_is_refused() -> None:
    module = network("theorem 2").network.to_torch()
    x = torch.full((3, 1), 0.5)
    with pytest.raises(NumberKindError, match="float32 has 24"):
        module(x)
    with pytest.raises(NumberKindError, match=r"Call \.double\(\) on both"):
        module.float()(x.double())
    with pytest.raises(ValueError, match=r"takes \(\*batch, 3, 1\)"):
        module(x.double().T)


def test_unrolling_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_module, "UNROLL_LIMIT", 10)
    with pytest.raises(MemoryLimitError, match="the limit is 10"):
        network("modified").network.to_torch(unroll=True, allow_rounding=True)


@pytest.mark.rows(1)
@pytest.mark.compile
@pytest.mark.parametrize("name", ["urpe", "theorem 2", "modified"])
def test_torch_compile(name: str) -> None:
    built = network(name)
    module = built.network.to_torch(allow_rounding=True)
    x = inputs(built)
    with torch.no_grad():
        compiled = torch.compile(module, fullgraph=True)(torch.tensor(x)).numpy()
    assert np.abs(compiled - built.network(x)).max() <= TOLERANCE


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:torch.compile is ignored:UserWarning")  # by scan
def test_torch_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop if it is strict; written out otherwise, up to a limit."""
    built = ef.construct(ef.targets.reverse(2, 1), grid=2)
    module, x = built.network.to_torch(), torch.rand(3, 2, 1, dtype=torch.float64)
    sizes: list[int] = []
    for strict in (True, False):
        program = torch.export.export(module, (x,), strict=strict)
        sizes.append(len(program.graph.nodes))
        assert torch.equal(program.module()(x), module(x))
    assert sizes[0] < sizes[1]
    monkeypatch.setattr(torch_module, "EXPORT_LIMIT", 3)
    with pytest.raises(MemoryLimitError, match=r"has 4 blocks.*strict=True"):
        torch.export.export(module, (x,), strict=False)


def test_onnx_agrees(built: Built, tmp_path: Path) -> None:
    path = tmp_path / "network.onnx"
    built.network.to_onnx(path, allow_rounding=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = inputs(built)
    (y,) = session.run(None, {"x": x})
    assert np.abs(np.asarray(y) - built.network(x)).max() <= TOLERANCE
    graph = onnx.load(path).graph
    assert sum(node.op_type == "Scan" for node in graph.node) == len(built.network.stages)
    assert len(graph.node) <= len(built.network.stages) + 2  # not a node per block
    assert [p.name for p in tmp_path.iterdir()] == ["network.onnx"]


def test_large_onnx_models_keep_weights_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from everyformer.model import onnx_export

    monkeypatch.setattr(onnx_export, "_PROTOBUF_LIMIT", 1000)
    built = network("theorem 2")
    path = tmp_path / "network.onnx"
    built.network.to_onnx(path)
    assert (tmp_path / "network.onnx.data").exists()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = inputs(built)
    (y,) = session.run(None, {"x": x})
    assert np.abs(np.asarray(y) - built.network(x)).max() <= TOLERANCE


def test_without_onnx_the_export_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'everyformer\[onnx\]'"):
        network("theorem 2").network.to_onnx(tmp_path / "network.onnx")
    assert list(tmp_path.iterdir()) == []
