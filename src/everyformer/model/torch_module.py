"""The network as an `nn.Module`: the same stacked weights, or one module per block."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from everyformer.errors import MemoryLimitError, NumberKindError
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.registers import PREFIX
from everyformer.model.stacks import Stage

if TYPE_CHECKING:
    from everyformer.model.network import Network

UNROLL_LIMIT = 50_000
"""Most blocks that `unroll=True` turns into modules (about 6 KB each, measured)."""

EXPORT_LIMIT = 500
"""Most blocks of a stage that `torch.export` writes out without strict=True."""

Weights = dict[str, Tensor]


def attention(x: Tensor, weights: Weights, hard: bool) -> Tensor:
    """Equation 1 of Yun et al. 2020 on rows; all heads at once.

    With a gain and a bias of the value: Equation 8 of Luo et al. 2022. With a mask: the
    sparse heads of Yun et al. 2020b.
    """
    tokens = x.unsqueeze(-3)  # [*batch, 1, n, d]
    query = tokens @ weights["W_Q"].mT - weights["b_Q"].unsqueeze(-2)  # [*batch, h, n, m]
    key, value = tokens @ weights["W_K"].mT, tokens @ weights["W_V"].mT
    if "b_V" in weights:
        value = value + weights["b_V"].unsqueeze(-2)
    scores = query @ key.mT  # [*batch, h, n, n]
    if "mask" in weights:
        scores = scores.masked_fill(~weights["mask"], -torch.inf)
    if hard:
        largest = (scores == scores.amax(-1, keepdim=True)).to(scores.dtype)
        shares = largest / largest.sum(-1, keepdim=True)
    else:
        shares = torch.softmax(scores, dim=-1)
    if "gain" in weights:
        # Row j is gain_j, .., gain_{j-n+1}: the windows of n entries, backwards.
        shares = shares * weights["gain"].unfold(-1, x.shape[-2], 1).flip(-1)
    return x + ((shares @ value) @ weights["W_O"].mT).sum(-3)


def feed_forward(x: Tensor, weights: Weights) -> Tensor:
    """Equation 2 of Yun et al. 2020 on rows, with ReLU or a function of Phi."""
    t = x @ weights["W_1"].mT + weights["b_1"]  # [*batch, n, r]
    hidden = _phi(t, weights) if "phi_breaks" in weights else torch.relu(t)
    return x + (hidden @ weights["W_2"].mT + weights["b_2"])


def _phi(t: Tensor, weights: Weights) -> Tensor:
    breaks, closed = weights["phi_breaks"], weights["phi_closed"]
    a, b = weights["phi_slopes"], weights["phi_intercepts"]
    left = (t < breaks[:, 0]) | ((t == breaks[:, 0]) & closed[:, 0])
    middle = (t < breaks[:, 1]) | ((t == breaks[:, 1]) & closed[:, 1])
    pieces = [a[:, i] * t + b[:, i] for i in range(3)]
    return torch.where(left, pieces[0], torch.where(middle, pieces[1], pieces[2]))


class BlockRun(nn.Module):
    """The weights of one block, or of a run of blocks stacked along the first axis.

    Trainable weights are parameters; the functions of Phi and the masks are buffers.
    """

    def __init__(self, stage: Stage, hard: bool, block: int | None = None) -> None:
        """Take the arrays of a stage, or those of one of its blocks."""
        super().__init__()
        self.stage_name = stage.name
        self.hard = hard
        self.stacked = block is None
        self.has_attention = stage.attention is not None
        self.has_feed_forward = stage.feed_forward is not None
        self._names: list[str] = []
        for dotted, array in stage.arrays():
            name = dotted.removeprefix("attention.").removeprefix("feed_forward.")
            name = name.replace(".", "_")
            tensor = torch.tensor(np.asarray(array if block is None else array[block]))
            if name.startswith("phi_") or name == "mask":
                self.register_buffer(name, tensor)
            else:
                self.register_parameter(name, nn.Parameter(tensor))
            self._names.append(name)

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Run the block, or all blocks one after the other."""
        weights: Weights = {name: getattr(self, name) for name in self._names}
        if not self.stacked:
            return self._block(x, weights)
        if torch.compiler.is_dynamo_compiling():
            return _scan_blocks(self._block, x, weights)
        depth = len(next(iter(weights.values())))
        if torch.compiler.is_exporting() and depth > EXPORT_LIMIT:
            msg = (
                f"{self.stage_name} has {depth:,} blocks, and torch.export would write out "
                f"each, which is for {EXPORT_LIMIT:,} at most. torch.export.export(module, "
                "args, strict=True) keeps them in a loop."
            )
            raise MemoryLimitError(msg)
        for values in zip(*(weight.unbind(0) for weight in weights.values()), strict=True):
            x = self._block(x, dict(zip(weights, values, strict=True)))
        return x

    def _block(self, x: Tensor, weights: Weights) -> Tensor:
        if self.has_attention:
            x = attention(x, weights, self.hard)
        if self.has_feed_forward:
            x = feed_forward(x, weights)
        return x

    def extra_repr(self) -> str:
        """The step of the proof and the depth."""
        depth = getattr(self, self._names[0]).shape[0] if self.stacked else 1
        return f"{self.stage_name!r}, blocks={depth}"


def _scan_blocks(
    block: Callable[[Tensor, Weights], Tensor], x: Tensor, weights: Weights
) -> Tensor:
    """The loop over blocks as one scan, which `torch.compile` does not unroll.

    Nor does torch.export with strict=True; without, it cannot follow a scan in torch 2.13.
    """

    def step(state: Tensor, layer: Weights) -> tuple[Tensor, Tensor]:
        after = block(state, layer)
        return after, after.new_zeros(())

    final, _ = scan(step, x, weights, dim=0)
    return final


def check_input(x: Tensor, weight: Tensor, architecture: ArchitectureSpec) -> None:
    """Refuse what a module of this architecture cannot run on.

    Raises:
        NumberKindError: If x or the weights are not float64.
        ValueError: If the shape is wrong.
    """
    n, d = architecture.seq_len, architecture.d_model
    if x.shape[-2:] != (n, d):
        msg = f"x has shape {tuple(x.shape)}, but this network takes (*batch, {n}, {d})."
        raise ValueError(msg)
    if x.dtype != torch.float64 or weight.dtype != torch.float64:
        msg = (
            f"x is {x.dtype} and the weights are {weight.dtype}: the ids of the "
            "contextual map need up to 52 bits, and float32 has 24. Call .double() on both."
        )
        raise NumberKindError(msg)


class TransformerModule(nn.Module):
    """A network of T^{h,m,r} or Omega_U^{h,m,r} in PyTorch, float64.

    `blocks` holds one module for each stage (stacked weights) or for each block.
    """

    def __init__(
        self,
        network: "Network",
        *,
        unroll: bool = False,
    ) -> None:
        """Copy the weights of a network.

        Raises:
            MemoryLimitError: If unrolling would make too many modules.
        """
        super().__init__()
        if unroll and network.blocks > UNROLL_LIMIT:
            msg = (
                f"unroll=True would make {network.blocks:,} modules; each takes about "
                f"6 KB, and the limit is {UNROLL_LIMIT:,}. "
                "Leave unroll=False: the stacked module has the same weights."
            )
            raise MemoryLimitError(msg)
        self.architecture = network.architecture
        positions, registers = network.positions, network.registers
        self.positions = (
            None if positions is None else nn.Parameter(torch.tensor(positions))
        )
        self.registers = nn.ParameterDict()
        for name, array in () if registers is None else registers.arrays():
            self.registers[name.removeprefix(PREFIX)] = nn.Parameter(torch.tensor(array))
        hard = network.architecture.normaliser == "hardmax"
        self.blocks = nn.ModuleList(
            [
                BlockRun(stage, hard, block)
                for stage in network.stages
                for block in (range(stage.blocks) if unroll else [None])
            ]
        )

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Evaluate; x must be float64 of shape (*batch, n, d).

        Raises:
            NumberKindError: If x or the weights are not float64.
            ValueError: If the shape is wrong.
        """
        check_input(x, next(self.parameters()), self.architecture)
        if self.positions is not None:
            x = x + self.positions
        if self.registers:
            x = x @ self.registers["W_in"].mT + self.registers["start"]
            if "prefix" in self.registers:
                before = self.registers["prefix"].expand(*x.shape[:-2], -1, -1)
                x = torch.cat([before, x], dim=-2)
        for block in self.blocks:
            x = block(x)
        if self.registers:
            x = x[..., self.architecture.num_prefix :, :] @ self.registers["W_out"].mT
        return x
