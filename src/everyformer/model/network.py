"""A Transformer as data, and what can be done with one."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from everyformer.errors import FileFormatError, InputError, NumberKindError
from everyformer.explorable import Explorable
from everyformer.files.description import kind_of, stage_entry
from everyformer.files.network_file import (
    CONTENT_ERRORS,
    MAX_MEMORY,
    damaged,
    read_network_file,
)
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.compiled import CompiledProgram
from everyformer.model.construction import Construction
from everyformer.model.embedding import embed
from everyformer.model.executor import Executor, ExecutorName
from everyformer.model.forward import run_blocks
from everyformer.model.insides import Trace, insides
from everyformer.model.masks import check_masks
from everyformer.model.onnx_export import save_onnx
from everyformer.model.registers import Registers
from everyformer.model.stacks import Stage, below
from everyformer.model.storage import simplified, write_arrays
from everyformer.notebook import html_table, short
from everyformer.numerics.limits import check_limit
from everyformer.numerics.rationals import exact_array, to_float
from everyformer.progress import Progress, no_progress

if TYPE_CHECKING:
    from everyformer.model.torch_module import TransformerModule
    from everyformer.model.torch_standard import StandardTransformer


@dataclass(frozen=True)
class StageState:
    """The state of the network after one stage.

    Attributes:
        stage: Name of the stage; "input" for x + E, or for the registers read in.
        state: The tokens, shape (*batch, n, d); the registers, where there are some.
        ids: u^T z of every token, shape (*batch, n), where the network has ids.
    """

    stage: str
    state: np.ndarray
    ids: np.ndarray | None


@dataclass(frozen=True)
class Network(Explorable):
    """A network of T, T_P, Omega_U or ST^{h,m,r}, or of the modified classes.

    Weights are float64, or exact rationals (object arrays of ints and Fractions) in
    networks of the modified class. A network is called like a function.

    Attributes:
        architecture: Sizes and kinds of layer.
        stages: The blocks, in order, stacked by the step of the proof they do.
        positions: E, shape (n, d), or None.
        construction: How to read the insides, if the network was constructed.
        registers: The read-in and the read-out of a network whose blocks are wider than its
            tokens, or None.
        program: What its heads and units compute, if the network was compiled.
    """

    architecture: ArchitectureSpec
    stages: tuple[Stage, ...]
    positions: np.ndarray | None = None
    construction: Construction | None = None
    registers: Registers | None = None
    program: CompiledProgram | None = None

    def __post_init__(self) -> None:
        """Check that gains and masks are for n tokens, and that registers fit."""
        self._check_registers()
        check_masks(self.architecture, self.stages)
        offsets = 2 * self.architecture.seq_len - 1
        for stage in self.stages:
            gain = None if stage.attention is None else stage.attention.gain
            if gain is not None and gain.shape[-1] != offsets:
                msg = (
                    f"The stage {stage.name!r} has a gain of {gain.shape[-1]} offsets, but "
                    f"{self.architecture.seq_len} tokens have {offsets}. Give one number "
                    "for each offset."
                )
                raise ValueError(msg)

    def _check_registers(self) -> None:
        spec, held = self.architecture, self.registers
        expected = (spec.seq_len, spec.d_model, spec.width, spec.num_prefix)
        found = (spec.seq_len, spec.d_model, None, 0)
        if held is not None:
            found = (len(held.start), held.W_in.shape[1], held.width, held.num_prefix)
        if found != expected:
            msg = (
                f"The registers have (n, d, w, P) = {found}, the architecture {expected}. "
                "Give registers for this architecture."
            )
            raise ValueError(msg)
        if held is not None and self.positions is not None:
            msg = "Positions E and registers are both given; put E into registers.start."
            raise ValueError(msg)

    @property
    def blocks(self) -> int:
        """The depth: how many blocks all stages have together."""
        return sum(stage.blocks for stage in self.stages)

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every array with a dotted name that says its stage, in a fixed order."""
        if self.positions is not None:
            yield "positions", self.positions
        if self.registers is not None:
            yield from self.registers.arrays()
        for index, stage in enumerate(self.stages):
            for name, array in stage.arrays():
                yield f"stages.{index}.{name}", array

    @property
    def is_exact(self) -> bool:
        """True when weights are rationals rather than float64."""
        return self.executor.is_exact

    def __call__(
        self,
        x: Any,
        progress: Progress = no_progress,
        *,
        executor: ExecutorName = "auto",
        dtype: type | str = np.float64,
        threads: int | None = None,
    ) -> Any:
        """Evaluate: numpy in, numpy out; torch in, torch out, on the same device.

        Args:
            x: Tokens as rows, shape (*batch, n, d), any number of batch dimensions.
            progress: Called now and then, for long runs.
            executor: "literal" runs every block, on the CPU or, for a CUDA tensor, on the
                GPU; "folded" uses the structure of a constructed network; "reference" runs
                the blocks one by one in numpy; "exact" runs a hardmax network in rationals
                and rounds once. "auto" is "exact" for rational weights, else "literal".
            dtype: float64, or float32 for the literal executor.
            threads: Threads on the CPU; all cores by default.

        Raises:
            InputError: If the shape is wrong or an entry is not a finite real number.
            DomainError: If an entry lies where the theorem says nothing.
            NumberKindError: If the executor cannot run this network.
        """
        tensor = _is_tensor(x)
        tokens = self.check_input(x.detach().cpu().numpy() if tensor else x)
        device = str(x.device) if tensor else "cpu"
        result = self.executor.run(
            tokens,
            name=executor,
            dtype=np.dtype(dtype).type,
            device=device,
            threads=threads,
            progress=progress,
        )
        if not tensor:
            return result
        import torch

        return torch.from_numpy(result).to(x.device)

    def explain(self, executor: ExecutorName = "auto", device: str = "cpu") -> str:
        """Which executor a call would use, and why, in words."""
        return self.executor.explain(executor, device)

    @cached_property
    def executor(self) -> Executor:
        """The ways to run this network; weights are packed and compiled once."""
        return Executor(self)

    def exact(self, x: Any, progress: Progress = no_progress) -> np.ndarray:
        """Evaluate in exact arithmetic.

        Args:
            x: Floats (taken as the dyadic numbers they are), ints or Fractions.
            progress: Called now and then, for long runs.

        Returns:
            An object array of ints and Fractions, of the shape of x.

        Raises:
            NumberKindError: If the network uses softmax, which has no rational values.
        """
        return self.executor.exact(self._shaped(exact_array(x)), progress)

    def trace(self, x: Any, progress: Progress = no_progress) -> Trace:
        """The state after every stage: quantised tokens, ids, values.

        Numbers are of the kind `__call__` computes with: float64, or rationals for a
        network with rational weights. Of a compiled network, `insides` has every step of
        its program beside its ideal value, and `print` shows them as a table.
        """
        steps = tuple(self._run(self.check_input(x), progress))
        return Trace(steps, insides(self, steps[0].state))

    def trace_blocks(self, x: Any, stage_name: str) -> tuple[StageState, ...]:
        """The state before and after every single block of one stage."""
        names = [stage.name for stage in self.stages]
        if stage_name not in names:
            msg = f"This network has no stage {stage_name!r}. It has: {', '.join(names)}."
            raise ValueError(msg)
        index = names.index(stage_name)
        before = replace(self, stages=self.stages[:index])
        state = before._last(before._run(before.check_input(x), no_progress)).state
        steps = [StageState("before", state, self.ids(state))]
        normaliser = self.architecture.normaliser
        for number, after in enumerate(
            run_blocks(self.stages[index], state, normaliser), start=1
        ):
            steps.append(StageState(f"block {number}", after, self.ids(after)))
        return tuple(steps)

    def ids(self, state: np.ndarray) -> np.ndarray | None:
        """u^T z of every token, or None for a network without ids."""
        if self.construction is None or self.construction.ids is None:
            return None
        u = np.asarray(self.construction.ids.direction)
        return state @ u.astype(state.dtype)

    def __repr__(self) -> str:
        """One line: the class, the sizes, and what it was made for."""
        spec, made = self.architecture, self.construction or self.program
        sizes = f"n = {spec.seq_len}, d = {spec.d_model}"
        target = "" if made is None else f" for {short(made.target)}"
        blocks = f"{self.blocks:,} block{'s' * (self.blocks != 1)}"
        return f"Network({spec.class_name}{target}: {sizes}, {blocks})"

    def _repr_html_(self) -> str:
        """A line for each stage, for notebooks."""
        rows = [[short(s.name), f"{s.blocks:,}", short(s.source)] for s in self.stages]
        spec = self.architecture
        caption = f"{repr(self)[8:-1]}\n{spec.class_name}: {spec.class_in_words}"
        return html_table(caption, rows, ("stage", "blocks", "source"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights and description to one safetensors file, all or nothing."""
        description = {
            "architecture": self.architecture.to_json(),
            "stages": [stage_entry(s.name, s.source, s.kind) for s in self.stages],
            "construction": None
            if self.construction is None
            else self.construction.to_json(self.architecture.inner_width),
        }
        if self.program is not None:
            description["program"] = self.program.to_json()
        write_arrays(Path(path), dict(self.arrays()), description)

    def embedded(self, h: int, m: int, r: int) -> "Network":
        """The same function in the class T^{h,m,r}: heads and units of zeros are appended.

        Args:
            h: Heads, at least as many as there are.
            m: Size of a head, at least its own.
            r: Hidden units, at least as many as there are.

        Raises:
            InputError: If a size is not an integer or below the network's own.
        """
        return embed(self, h, m, r)

    @overload
    def to_torch(
        self,
        *,
        standard: Literal[False] = False,
        unroll: bool = False,
        allow_rounding: bool = False,
    ) -> "TransformerModule": ...
    @overload
    def to_torch(
        self, *, standard: Literal[True], allow_rounding: bool = False
    ) -> "StandardTransformer": ...
    def to_torch(
        self, *, standard: bool = False, unroll: bool = False, allow_rounding: bool = False
    ) -> "TransformerModule | StandardTransformer":
        """The network as an `nn.Module` in float64.

        Args:
            standard: PyTorch's own layers, `nn.MultiheadAttention` and `nn.Linear`, for
                each block.
            unroll: One module for each block instead of stacked weights.
            allow_rounding: Round rational weights that are not float64 numbers.

        Raises:
            NumberKindError: If weights would be rounded, or PyTorch has no such layer.
            MemoryLimitError: If there are too many blocks for a module each.
        """
        network = self.in_float64(allow_rounding=allow_rounding)
        # PyTorch takes a second or two to import: only those wait who need it.
        if standard:
            from everyformer.model.torch_standard import StandardTransformer

            return StandardTransformer(network)
        from everyformer.model.torch_module import TransformerModule

        return TransformerModule(network, unroll=unroll)

    def to_onnx(
        self, path: str | os.PathLike[str], *, allow_rounding: bool = False
    ) -> None:
        """Write an ONNX model: one Scan over the stacked weights of each stage.

        Args:
            path: Where to write.
            allow_rounding: Round rational weights that are not float64 numbers.
        """
        save_onnx(Path(path), self.in_float64(allow_rounding=allow_rounding))

    def in_float64(self, *, allow_rounding: bool = False) -> "Network":
        """The network with float64 weights.

        Raises:
            NumberKindError: If a rational weight would be rounded and that is not allowed.
        """
        if not self.is_exact:
            return self
        rounded = 0
        converted: dict[str, np.ndarray] = {}
        for name, array in self.arrays():
            if array.dtype != object:
                converted[name] = array
                continue
            converted[name] = to_float(array)
            rounded += int((exact_array(converted[name]) != array).sum())
        if rounded and not allow_rounding:
            msg = (
                f"{rounded} weights of this network are rationals that float64 cannot "
                "hold; rounded, the ids may miss their windows. Construct with "
                "softened=True, whose weights are float64 numbers, or pass "
                "allow_rounding=True."
            )
            raise NumberKindError(msg)
        return self.with_arrays(converted)

    def with_arrays(self, arrays: dict[str, np.ndarray]) -> "Network":
        """The same network with other arrays, named as by `arrays`."""
        stages = tuple(
            Stage.from_arrays(s.name, s.source, below(f"stages.{index}.", arrays), s.kind)
            for index, s in enumerate(self.stages)
        )
        return replace(
            self,
            stages=stages,
            positions=arrays.get("positions"),
            registers=Registers.from_arrays(arrays),
        )

    def _run(self, tokens: np.ndarray, progress: Progress) -> Iterator[StageState]:
        stages, state = self.executor.stages_literal, tokens
        if self.is_exact:
            self.executor.choose("exact", "cpu")
            stages, state = self.executor.stages_exact, exact_array(tokens)
        state = self.executor.enter(state)
        state = exact_array(state) if self.is_exact else state
        yield StageState("input", state, self.ids(state))
        for stage, after in stages(state, progress):
            yield StageState(stage.name, after, self.ids(after))

    @staticmethod
    def _last(steps: Iterator[StageState]) -> StageState:
        last = None
        for last in steps:  # noqa: B007
            pass
        assert last is not None, "the input is always a step"  # noqa: S101
        return last

    def check_input(self, x: Any) -> np.ndarray:
        """x as an array that this network can take.

        Returns:
            float64; or the ints and Fractions given, for a network with rational weights.

        Raises:
            InputError: If the shape is wrong, or an entry is not a finite real number.
            DomainError: If an entry lies where the theorem says nothing.
        """
        array = np.asarray(x)
        if array.dtype == object and self.is_exact:
            return self._shaped(array)
        if array.dtype.kind not in "fiubO":
            msg = f"x has dtype {array.dtype}; give real numbers."
            raise InputError(msg)
        array = self._shaped(array.astype(np.float64))
        if not np.isfinite(array).all():
            index = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
            msg = (
                f"x{index} = {array[tuple(index)]} is not finite. "
                "The network is defined on real numbers; remove or replace it."
            )
            raise InputError(msg)
        if self.construction is not None:
            self.construction.check_input(array)
        if self.program is not None:
            self.program.check_input(array)
        return array

    def _shaped(self, array: np.ndarray) -> np.ndarray:
        n, d = self.architecture.seq_len, self.architecture.d_model
        if array.ndim < 2 or array.shape[-2:] != (n, d):
            msg = (
                f"x has shape {array.shape}, but this network takes (*batch, {n}, {d}): "
                f"{n} tokens as rows, {d} coordinate{'s' * (d != 1)} each."
                f"{_reshaped(array, n, d)}"
            )
            raise InputError(msg)
        return array


def _reshaped(array: np.ndarray, n: int, d: int) -> str:
    """How an array of another shape becomes one that fits, where that is plain."""
    if array.ndim == 1 and array.size == n * d:
        return f" Write x.reshape({n}, {d})."
    if array.ndim >= 2 and array.shape[-2:] == (d, n):
        return " Tokens and coordinates seem swapped: write x.swapaxes(-1, -2)."
    return ""


def _is_tensor(x: Any) -> bool:
    """True for a torch.Tensor; without importing PyTorch, which made it if it is one."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def load(path: str | os.PathLike[str], *, max_memory: int | float = MAX_MEMORY) -> Network:
    """Read a network that `Network.save` wrote.

    Args:
        path: The file.
        max_memory: Bytes that its numbers may take.

    Raises:
        FileNotFoundError: If there is no such file.
        WorkLimitError: If it is larger than allowed.
        FileFormatError: If the file is not one, or was written by a newer version.
        InputError: If the limit is not a positive number.
    """
    check_limit("max_memory", max_memory, "bytes")
    path = Path(path)
    found = read_network_file(path, max_memory)
    description, arrays = found.description, simplified(found)
    try:
        stages = [
            Stage.from_arrays(
                name, source, below(f"stages.{index}.", arrays), kind_of(entry)
            )
            for index, entry in enumerate(description["stages"])
            for name, source in [entry[:2]]
        ]
        construction, program = description["construction"], description.get("program")
        return Network(
            architecture=ArchitectureSpec.from_json(description["architecture"]),
            stages=tuple(stages),
            positions=arrays.get("positions"),
            construction=None
            if construction is None
            else Construction.from_json(construction),
            registers=Registers.from_arrays(arrays),
            program=None if program is None else CompiledProgram.from_json(program),
        )
    except CONTENT_ERRORS as error:
        raise FileFormatError(damaged(path, error)) from error
