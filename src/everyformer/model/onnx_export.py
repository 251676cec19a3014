"""The network as an ONNX model: one Scan over the stacked weights of each stage.

All numbers are float64 (ONNX `DOUBLE`). onnxruntime's CPU provider computes every operator
used here in float64. Runtimes that know only float32 (most mobile and GPU providers) cannot
run such a model, and must not: ids of the contextual map need up to 52 bits.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.registers import Registers
from everyformer.model.stacks import Stage, toeplitz
from everyformer.model.storage import whole_or_not

if TYPE_CHECKING:
    from everyformer.model.network import Network

OPSET = 17
_PROTOBUF_LIMIT = 1_500_000_000


class _Body:
    """Nodes of one graph, with fresh names for intermediate values."""

    def __init__(self, helper: Any, prefix: str) -> None:
        self.helper = helper
        self.prefix = prefix
        self.nodes: list[Any] = []
        self.initialisers: list[Any] = []

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append a node and return the name of its output."""
        output = f"{self.prefix}_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(op, list(inputs), [output], **attributes))
        return output

    def constant(self, array: np.ndarray) -> str:
        """Append an initialiser and return its name."""
        numpy_helper = importlib.import_module("onnx.numpy_helper")
        name = f"{self.prefix}_constant_{len(self.initialisers)}"
        contiguous = np.ascontiguousarray(array)
        self.initialisers.append(numpy_helper.from_array(contiguous, name))
        return name


def save_onnx(path: Path, network: "Network") -> None:
    """Write the model; the file appears complete or not at all.

    Input `x` and output `y` have shape (batch, n, d).

    Raises:
        ModuleNotFoundError: If onnx is not installed.
    """
    try:
        onnx = importlib.import_module("onnx")
    except ModuleNotFoundError as error:
        msg = "to_onnx needs the package onnx. Install it: pip install 'everyformer[onnx]'."
        raise ModuleNotFoundError(msg) from error
    helper, double = onnx.helper, onnx.TensorProto.DOUBLE
    architecture, registers = network.architecture, network.registers
    shape = ["batch", architecture.seq_len, architecture.d_model]
    graph = _Body(helper, "g")
    state = "x"
    if network.positions is not None:
        state = graph.add("Add", state, graph.constant(network.positions))
    if registers is not None:
        state = _read_in(graph, state, registers)
    for number, stage in enumerate(network.stages):
        body, names = _stage_body(helper, stage, architecture, number)
        inputs = [graph.constant(array) for _, array in stage.arrays()]
        state = graph.add("Scan", state, *inputs, body=body, num_scan_inputs=len(names))
    if registers is not None:
        ends = (registers.num_prefix, registers.num_prefix + architecture.seq_len, 1)
        first, last, axis = (graph.constant(np.array([end], np.int64)) for end in ends)
        kept = graph.add("Slice", state, first, last, axis)
        state = graph.add("MatMul", kept, graph.constant(registers.W_out.T))
    graph.nodes.append(helper.make_node("Identity", [state], ["y"]))
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "everyformer",
            [helper.make_tensor_value_info("x", double, shape)],
            [helper.make_tensor_value_info("y", double, shape)],
            graph.initialisers,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
        producer_name="everyformer",
    )
    onnx.checker.check_model(model)
    _write(onnx, model, path)


def _read_in(graph: _Body, x: str, registers: Registers) -> str:
    """The registers of every token, behind those of the prefix."""
    product = graph.add("MatMul", x, graph.constant(registers.W_in.T))
    state = graph.add("Add", product, graph.constant(registers.start))
    if registers.prefix is None:
        return state
    first, one = (graph.constant(np.array(size, np.int64)) for size in ([0], [1]))
    batch = graph.add("Slice", graph.add("Shape", x), first, one)
    sizes = graph.constant(np.array(registers.prefix.shape, np.int64))
    shape = graph.add("Concat", batch, sizes, axis=0)
    before = graph.add("Expand", graph.constant(registers.prefix), shape)
    return graph.add("Concat", before, state, axis=1)


def _stage_body(
    helper: Any, stage: Stage, architecture: ArchitectureSpec, number: int
) -> tuple[Any, list[str]]:
    """The graph of one block: state and its weights in, state out."""
    proto = importlib.import_module("onnx").TensorProto
    body = _Body(helper, f"s{number}")
    arrays = list(stage.arrays())
    weights = {dotted: f"s{number}.{dotted}" for dotted, _ in arrays}
    state = f"s{number}.state"
    infos = [
        helper.make_tensor_value_info(
            weights[dotted],
            proto.BOOL if array.dtype == bool else proto.DOUBLE,
            array.shape[1:],
        )
        for dotted, array in arrays
    ]
    tokens = architecture.seq_len + architecture.num_prefix
    shape = ["batch", tokens, architecture.inner_width]
    after = state
    if stage.attention is not None:
        after = _attention(body, after, weights, architecture)
    if stage.feed_forward is not None:
        after = _feed_forward(body, after, weights)
    graph = helper.make_graph(
        body.nodes,
        f"stage_{number}",
        [helper.make_tensor_value_info(state, proto.DOUBLE, shape), *infos],
        [helper.make_tensor_value_info(after, proto.DOUBLE, shape)],
        body.initialisers,
    )
    return graph, list(weights)


def _attention(
    body: _Body, x: str, weights: dict[str, str], architecture: ArchitectureSpec
) -> str:
    """Equation 1 on rows; heads are an axis of their own. With a gain: Equation 8.

    A mask is a constant of the model, one square for each block.
    """
    axis = body.constant(np.array([1], dtype=np.int64))
    last = body.constant(np.array([-1], dtype=np.int64))
    tokens = body.add("Unsqueeze", x, axis)  # [batch, 1, n, d]

    def project(name: str) -> str:
        W = body.add("Transpose", weights[f"attention.{name}"], perm=[0, 2, 1])
        return body.add("MatMul", tokens, W)  # [batch, h, n, m]

    bias = body.add("Unsqueeze", weights["attention.b_Q"], axis)  # [h, 1, m]
    query = body.add("Sub", project("W_Q"), bias)
    key = body.add("Transpose", project("W_K"), perm=[0, 1, 3, 2])
    scores = body.add("MatMul", query, key)  # [batch, h, n, n]
    if "attention.mask" in weights:
        unheard = body.constant(np.array(-np.inf))
        scores = body.add("Where", weights["attention.mask"], scores, unheard)
    if architecture.normaliser == "hardmax":
        top = body.add("ReduceMax", scores, axes=[-1], keepdims=1)
        equal = body.add("Cast", body.add("Equal", scores, top), to=11)  # DOUBLE
        winners = body.add("ReduceSum", equal, last, keepdims=1)
        shares = body.add("Div", equal, winners)
    else:
        shares = body.add("Softmax", scores, axis=-1)
    if "attention.gain" in weights:
        n = architecture.seq_len
        offset = body.constant(toeplitz(np.arange(2 * n - 1), n))
        gain = body.add("Gather", weights["attention.gain"], offset, axis=1)  # [h, n, n]
        shares = body.add("Mul", shares, gain)
    value = project("W_V")
    if "attention.b_V" in weights:
        b_V = body.add("Unsqueeze", weights["attention.b_V"], axis)  # [h, 1, m]
        value = body.add("Add", value, b_V)
    heads = body.add("MatMul", shares, value)
    W_O = body.add("Transpose", weights["attention.W_O"], perm=[0, 2, 1])
    update = body.add("ReduceSum", body.add("MatMul", heads, W_O), axis, keepdims=0)
    return body.add("Add", x, update)


def _feed_forward(body: _Body, x: str, weights: dict[str, str]) -> str:
    """Equation 2 on rows, with ReLU or a function of Phi."""

    def transposed(name: str) -> str:
        return body.add("Transpose", weights[f"feed_forward.{name}"], perm=[1, 0])

    product = body.add("MatMul", x, transposed("W_1"))
    t = body.add("Add", product, weights["feed_forward.b_1"])
    hidden = (
        _phi(body, t, weights)
        if "feed_forward.phi.breaks" in weights
        else body.add("Relu", t)
    )
    product = body.add("MatMul", hidden, transposed("W_2"))
    update = body.add("Add", product, weights["feed_forward.b_2"])
    return body.add("Add", x, update)


def _phi(body: _Body, t: str, weights: dict[str, str]) -> str:
    """A function of Phi: the piece left of c_1, between, or right of c_2."""

    def column(name: str, index: int) -> str:
        position = body.constant(np.array(index, dtype=np.int64))
        return body.add("Gather", weights[f"feed_forward.phi.{name}"], position, axis=1)

    def before(index: int) -> str:
        at, closed = column("breaks", index), column("closed", index)
        on_break = body.add("And", body.add("Equal", t, at), closed)
        return body.add("Or", body.add("Less", t, at), on_break)

    def piece(index: int) -> str:
        line = body.add("Mul", t, column("slopes", index))
        return body.add("Add", line, column("intercepts", index))

    rest = body.add("Where", before(1), piece(1), piece(2))
    return body.add("Where", before(0), piece(0), rest)


def _write(onnx: Any, model: Any, path: Path) -> None:
    if model.ByteSize() > _PROTOBUF_LIMIT:
        path.parent.mkdir(parents=True, exist_ok=True)
        # One protobuf message holds at most 2 GB: the weights go to a file beside it.
        onnx.save_model(
            model,
            path,
            save_as_external_data=True,
            all_tensors_to_one_file=True,
            location=f"{path.name}.data",
        )
        return
    with whole_or_not(path) as temporary:
        onnx.save_model(model, temporary)
