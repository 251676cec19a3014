"""A residual network with one neuron in each hidden layer, for comparison (Section 5.4).

Lin and Jegelka (2018) show that blocks z + v relu(w^T z + c) are universal. Yun et al.
compare their Transformers with such a network on the flattened sequence, z in R^N, N = n d,
which needs O(N K^N) numbers for K cells per axis. Here is one that needs so many.

Differs from Lin and Jegelka: cells are handled from the top down, so that a neuron, which
acts on a half-line, meets one cell alone.

1. Quantise, two blocks for each coordinate and cell k = K - 1 .. 0. The first takes
   z_i - k/K from every z_i above k/K; the second moves the point k/K, with a ramp of width
   rho below it, down to k/K - 2, where no later block acts.
2. One block adds a constant: coordinates are multiples of 1/K again, and the first one is
   lifted so far that u^T z, u = (1, K, .., K^{N-1}), of every cell is above all u^T A.
3. Values, one block for each cell, ids u^T z in decreasing order: half a step 1/(2 K) below
   the id of a cell no other is left above, and the neuron sees 1/(2 K) there. It adds
   2 K (A - z) times that.
4. Clamp, two blocks for each coordinate: min(z_i, high), then max(z_i, low), the range of
   the table.

Off the ramps the result is the table, in real arithmetic: that is why the count suffices.
On the ramps the clamp keeps it in the range of the table. So d_p(f, g) is bounded as for a
Transformer, by `certify.residual`, which reads the blocks and not this file.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import prod

import numpy as np

from everyformer.certify.from_files import known_of
from everyformer.certify.on_cells.cells import Cells
from everyformer.certify.on_cells.residual import Blocks, prove_residual
from everyformer.certify.proof import Proof, Work
from everyformer.certify.verify import declare
from everyformer.errors import GridError
from everyformer.papers import YUN2020, implements
from everyformer.targets.box import Grid
from everyformer.targets.target import Target

BUILT_COORDINATES = 4
"""n d of the largest network that is built; others are counted."""

BUILT_CELLS = 2**16
BUILT_GRID = 256
"""K of the finest; the proof takes each cell of a coordinate through 2 K blocks."""

RAMP_WIDTH = Fraction(1, 2**30)
"""rho, as a share of the interval of a coordinate."""

DOWN = 2
"""How far points that are done move down, out of [0, 1]."""


@implements(YUN2020, "Section 5.4")
@dataclass(frozen=True)
class ResidualPlan:
    """What the network costs, by formula.

    Attributes:
        grid: n, d, K and the box.
    """

    grid: Grid

    @property
    def coordinates(self) -> int:
        """N = n d."""
        return self.grid.seq_len * self.grid.d_model

    @property
    def blocks(self) -> int:
        """2 N K to quantise, one constant, K^N values, 2 N to clamp."""
        N = self.coordinates
        return 2 * N * self.grid.cells + 1 + self.grid.sequences + 2 * N

    @property
    def ramp_share(self) -> Fraction:
        """Of the domain, at most: K - 1 ramps of width rho in each coordinate."""
        return self.coordinates * (self.grid.cells - 1) * RAMP_WIDTH

    @property
    def parameters(self) -> int:
        """w, c and v of every block: 2 N + 1 numbers."""
        return (2 * self.coordinates + 1) * self.blocks

    def to_json(self) -> dict[str, int]:
        """A JSON object."""
        return {
            "grid": self.grid.cells,
            "blocks": self.blocks,
            "parameters": self.parameters,
        }

    def build(self, target: Target) -> "ResidualNetwork":
        """The blocks that compute the table of a target.

        Raises:
            GridError: If it is larger than what is built, or K is not a power of two.
            TargetError: If the target fails.
        """
        if not self.grid.is_dyadic:
            msg = (
                f"grid={self.grid.cells} is not a power of two, and multiples of "
                f"1/{self.grid.cells} are rounded in float64. Use a power of two."
            )
            raise GridError(msg)
        K, cells = self.grid.cells, self.grid.sequences
        if self.coordinates > BUILT_COORDINATES or cells > BUILT_CELLS or K > BUILT_GRID:
            msg = (
                f"n d = {self.coordinates}, K = {K} and K^(n d) = {cells:,}: this network "
                f"for comparison is built for n d <= {BUILT_COORDINATES}, "
                f"K <= {BUILT_GRID} and {BUILT_CELLS:,} cells at most. Use a smaller "
                "target or grid; its size is known without building it."
            )
            raise GridError(msg)
        return _built(self, target)


@dataclass(frozen=True)
class ResidualNetwork:
    """Blocks z + v relu(w^T z + c) on the flattened sequence; called like a function.

    Attributes:
        grid: n, d, K and the box, which is mapped to [0, 1] first.
        W: Rows w, shape (blocks, N).
        c: Shape (blocks,).
        V: Columns v, shape (blocks, N).
    """

    grid: Grid
    W: np.ndarray
    c: np.ndarray
    V: np.ndarray

    def prove(self, target: Target, p: Fraction, work: Work = Work()) -> Proof:  # noqa: B008
        """Bounds of d_p(f, g) from above and from below, in real arithmetic.

        Args:
            target: f.
            p: The exponent.
            work: How the proof is made.

        Raises:
            TargetError: If the target fails.
            CertificateError: If f has no expression and declares nothing.

        Example:
            >>> from everyformer.targets import reverse
            >>> f = reverse(2, 1)
            >>> network = ResidualPlan(Grid(8, 2, f.domain)).build(f)
            >>> found = network.prove(f, Fraction(2))
            >>> found.real <= 0.0511, round(float(found.lower) ** 0.5, 4)
            (True, 0.0)
        """
        cells = Cells.of(
            self.grid, symmetric=False, region=target.region, everywhere=target.everywhere
        )
        known = target.expression
        if known is None:
            known = known_of(declare(target, cells), cells)
        return prove_residual(Blocks(self.W, self.c, self.V), cells, known, p, work)

    @property
    def parameters(self) -> int:
        """Numbers in all blocks, counted."""
        return self.W.size + self.c.size + self.V.size

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Evaluate on sequences (count, n, d), block by block, in float64."""
        low, high = np.asarray(self.grid.box.lows), np.asarray(self.grid.box.highs)
        z = ((x - low) / (high - low)).reshape(len(x), -1)
        for w, c, v in zip(self.W, self.c, self.V, strict=True):
            z = z + np.maximum(z @ w + c, 0.0)[:, None] * v
        return z.reshape(x.shape)

    def distance_sampled(self, target: Target, p: float, points: int = 4096) -> float:
        """d_p(f, g) at random points of the box: measured, and proves nothing."""
        low, high = np.asarray(self.grid.box.lows), np.asarray(self.grid.box.highs)
        cube = np.random.default_rng(0).random((points, target.seq_len, target.d_model))
        x = low + (high - low) * cube
        powers = (np.abs(self(x) - target(x)) ** p).sum(axis=(1, 2))
        volume = float(prod(self.grid.box.widths)) ** target.seq_len
        return float((volume * powers.mean()) ** (1 / p))


def _built(plan: ResidualPlan, target: Target) -> ResidualNetwork:
    grid, N, K = plan.grid, plan.coordinates, plan.grid.cells
    W, c, V = (np.zeros((plan.blocks, *size)) for size in ((N,), (), (N,)))
    rho, row = float(RAMP_WIDTH), 0
    for i in range(N):
        for k in reversed(range(K)):
            W[row : row + 2, i] = 1
            c[row], V[row, i] = -k / K, -1
            c[row + 1], V[row + 1, i] = rho - k / K, -DOWN / rho
            row += 2
    columns = grid.all_sequences()
    table = target(grid.centres(columns)).reshape(len(columns), N)
    z = (grid.digits(columns) / K).reshape(len(columns), N)
    u = float(K) ** np.arange(N)
    lift = np.zeros(N)
    lift[0] = 1 + np.ceil(np.abs(table @ u).max())
    c[row], V[row] = 1, DOWN + lift
    row += 1
    z = z + lift
    ids = z @ u
    order = np.argsort(-ids)
    values, clamp = slice(row, row + len(ids)), slice(row + len(ids), None)
    W[values] = u
    c[values] = 0.5 / K - ids[order]
    V[values] = 2 * K * (table - z)[order]
    W[clamp] = np.repeat(np.eye(N), 2, axis=0) * np.tile([1, -1], N)[:, None]
    V[clamp] = -W[clamp]
    c[clamp] = np.stack([-table.max(axis=0), table.min(axis=0)], axis=-1).reshape(-1)
    return ResidualNetwork(grid, W, c, V)
