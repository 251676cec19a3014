"""Which way a network is run, and why."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from everyformer.errors import NumberKindError
from everyformer.model.exact import Cache, run_exact
from everyformer.model.forward import run_stages
from everyformer.model.prefix import is_deaf, run_beside_prefix
from everyformer.model.stacks import Stage
from everyformer.numerics.rationals import exact_array
from everyformer.progress import Progress, no_progress

if TYPE_CHECKING:
    from everyformer.model.network import Network

ExecutorName = Literal["auto", "reference", "literal", "prefix", "folded", "exact"]
NAMES: tuple[str, ...] = get_args(ExecutorName)


@dataclass(frozen=True)
class Executor:
    """The ways to run one network. Weights are packed, folded and compiled once.

    Attributes:
        network: The weights, and what is known of them.
    """

    network: "Network"

    @cached_property
    def is_exact(self) -> bool:
        """True when weights are rationals rather than float64."""
        arrays = [array for stage in self.network.stages for _, array in stage.arrays()]
        return any(array.dtype == object for array in arrays)

    def choose(self, name: str, device: str) -> tuple[str, str]:
        """The executor for a name, and the reason.

        Raises:
            ValueError: If there is no such executor.
            NumberKindError: If it cannot run this network, or not on this device.
        """
        if name not in NAMES:
            msg = f"executor={name!r} does not exist. Choose one of {', '.join(NAMES)}."
            raise ValueError(msg)
        gpu = device != "cpu"
        if name == "auto":
            if self.is_exact:
                return "exact", "its weights are rationals"
            if not gpu and self.has_deaf_prefix:
                return "prefix", "no layer reads what prefix tokens hear"
            where = "the GPU, where x lies" if gpu else "the CPU"
            return "literal", f"every block is run, on {where}"
        if self.is_exact and name != "exact":
            msg = (
                f"executor={name!r} computes in floating point, but the weights of this "
                "network are rationals. Use executor='exact', or convert it first: "
                "network.in_float64(allow_rounding=True)."
            )
            raise NumberKindError(msg)
        if name == "prefix" and (gpu or not self.has_deaf_prefix):
            msg = (
                "executor='prefix' is for networks with prefix tokens that need not "
                f"attend, on the CPU; this one is on {device!r}, has none, or reads what "
                "they hear. Use executor='literal'."
            )
            raise NumberKindError(msg)
        rational = self.network.architecture.normaliser == "hardmax" or self.is_averaging
        if name == "exact" and not rational:
            msg = (
                "executor='exact' needs hardmax; softmax has no rational values. "
                "Construct with softened=False."
            )
            raise NumberKindError(msg)
        return name, "asked for"

    @cached_property
    def is_averaging(self) -> bool:
        """Whether all scores are 0 by the weights, so that softmax is the plain mean."""
        stacks = [s.attention for s in self.network.stages if s.attention is not None]
        return all(
            not stack.W_K.any() or not (stack.W_Q.any() or stack.b_Q.any())
            for stack in stacks
        )

    @cached_property
    def has_deaf_prefix(self) -> bool:
        """Whether there are prefix tokens, and nothing is read of what they hear."""
        return self.network.architecture.num_prefix > 0 and is_deaf(
            self.network.stages, self.network.architecture.inner_width
        )

    def explain(self, name: str, device: str) -> str:
        """The choice in words, with what the other executors would do."""
        chosen, reason = self.choose(name, device)
        blocks = self.network.blocks
        text = {
            "exact": "exact rationals, rounded once at the end",
            "literal": f"all {blocks:,} blocks, in order, in compiled code",
            "prefix": f"all {blocks:,} blocks for the sequences, and once for the prefix",
            "reference": f"all {blocks:,} blocks, one by one, in numpy",
            "folded": "rounding, a recursion on integers and a table look-up",
        }[chosen]
        lines = [f"{chosen}: {text} ({reason})"]
        foldable = self.network.construction is not None and self.network.registers is None
        foldable = foldable and self.network.architecture.pattern is None
        if chosen == "literal" and foldable:
            lines.append(
                "executor='folded' is faster for millions of sequences and equal on the "
                "plateaus; between them it takes the value of the cell"
            )
        return "\n".join(lines)

    def run(
        self,
        tokens: np.ndarray,
        *,
        name: str = "auto",
        dtype: type = np.float64,
        device: str = "cpu",
        threads: int | None = None,
        progress: Progress = no_progress,
    ) -> np.ndarray:
        """Evaluate checked sequences of shape (*batch, n, d); the result is float64."""
        chosen, _ = self.choose(name, device)
        self._check_dtype(dtype, chosen)
        shape = tokens.shape
        x = tokens.reshape(-1, *shape[-2:])
        if chosen == "exact":
            return self.exact(exact_array(x), progress).astype(np.float64).reshape(shape)
        if chosen == "reference":
            state = self.enter(x)
            normaliser = self.network.architecture.normaliser
            for _, after in run_stages(self.network.stages, state, normaliser, progress):
                state = after
            state = self.leave(state)
        elif chosen == "prefix":
            assert self.network.registers is not None, "they hold the prefix"  # noqa: S101
            assert self.network.registers.prefix is not None, "as chosen"  # noqa: S101
            state = run_beside_prefix(
                self.network.stages,
                self.network.registers.prefix,
                self.network.registers.beside_prefix(x),
                self.network.architecture.normaliser,
                progress,
            )
            state = state @ self.network.registers.W_out.T
        elif chosen == "folded":
            state = self._fold(progress)(x, threads)
        elif device == "cpu":
            from everyformer.model.execute import cpu

            state = cpu.run(
                self.packed,
                self.enter(x),
                dtype=dtype,
                threads=threads,
                progress=progress,
            )
            state = self.leave(state)
        else:
            import torch

            from everyformer.model.execute import cuda

            on_device = torch.from_numpy(self.enter(x)).to(device)
            state = self.leave(cuda.run(self.packed, on_device, dtype=dtype).cpu().numpy())
        return state.astype(np.float64).reshape(shape)

    def stages_exact(
        self, state: np.ndarray, progress: Progress = no_progress
    ) -> Iterator[tuple[Stage, np.ndarray]]:
        """The state after each stage, in rationals."""
        for stage, after in run_exact(self.network.stages, state, progress, self._integers):
            yield stage, after.values()

    def exact(self, tokens: np.ndarray, progress: Progress = no_progress) -> np.ndarray:
        """Evaluate ints and Fractions, exactly.

        Raises:
            NumberKindError: If the network uses softmax.
        """
        self.choose("exact", "cpu")
        last = None
        state = self.enter(tokens)
        for _, last in run_exact(self.network.stages, state, progress, self._integers):  # noqa: B007
            pass
        return self.leave(state if last is None else last.values())

    @cached_property
    def _integers(self) -> Cache:
        return {}

    def stages_literal(
        self, state: np.ndarray, progress: Progress = no_progress
    ) -> Iterator[tuple[Stage, np.ndarray]]:
        """The state after each stage, by the literal executor."""
        from everyformer.model.execute import cpu
        from everyformer.model.execute.pack import pack

        shape = state.shape
        x = state.reshape(-1, *shape[-2:])
        for stage in self.network.stages:
            x = cpu.run(pack((stage,), self.network.architecture), x, progress=progress)
            yield stage, x.reshape(shape)

    def enter(self, x: np.ndarray) -> np.ndarray:
        """What the first block sees: x + E, or the registers."""
        if self.network.registers is not None:
            state = self.network.registers.read_in(x)
            return exact_array(state) if x.dtype == object else state
        positions = self.network.positions
        if positions is None:
            return x
        return x + (exact_array(positions) if x.dtype == object else positions)

    def leave(self, state: np.ndarray) -> np.ndarray:
        """The result, from what the last block gives."""
        if self.network.registers is None:
            return state
        result = self.network.registers.read_out(state)
        return exact_array(result) if state.dtype == object else result

    def _check_dtype(self, dtype: type, chosen: str) -> None:
        if dtype == np.float64:
            return
        if dtype != np.float32 or chosen != "literal":
            msg = (
                f"dtype={dtype.__name__} with executor={chosen!r} does not exist: only the "
                "literal executor has another kind than float64, and that is float32."
            )
            raise NumberKindError(msg)
        c = self.network.construction
        if c is not None:
            why = "scores are differences of large numbers"
            if c.ids is not None:
                bits, ramp = int(c.ids.high * c.grid).bit_length(), float(c.ramp_width)
                why = f"ids need {bits} bits and its ramps are {ramp:.1g} wide"
            msg = (
                f"This network's {why}; float32 has 24 bits, and every output "
                "would be wrong. Use float64; float32 is for networks of another origin."
            )
            raise NumberKindError(msg)

    # numba and torch are slow to import: the compiled executors come in on first use.

    @cached_property
    def packed(self) -> Any:
        """The weights as rows, one for each layer; see `execute.pack`."""
        from everyformer.model.execute.pack import pack

        return pack(self.network.stages, self.network.architecture)

    def _fold(self, progress: Progress) -> Any:
        """The folded network; made, and compared with the literal one, on first use."""
        if not self._made:
            if self.network.registers is not None:
                msg = (
                    "This network cannot be folded: that is for the selective shifts of "
                    "Yun et al. 2020, and it has registers. Use executor='literal'."
                )
                raise NumberKindError(msg)
            from everyformer.model.execute.folded import fold

            self._made.append(fold(self.network, progress))
        return self._made[0]

    @cached_property
    def _made(self) -> list[Any]:
        return []
