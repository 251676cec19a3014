"""Graph networks that hear neighbours alone, on dense batches: GIN, GCN and GAT.

With A the neighbours of every node, x its states and I the identity:

    GIN (Xu et al. 2019, Equation 4.1)             MLP((1 + eps) x + A x)
    GCN (Kipf and Welling 2017, Equation 2)        D^-1/2 (A + I) D^-1/2 x W + b
    GAT (Velickovic et al. 2018, Equations 1-5)    sum_j alpha_ij W x_j, for each head, with
        alpha_i = softmax_j(LeakyReLU(a_1 W x_i + a_2 W x_j)), j = i and its neighbours

A block is x <- x + relu(norm(layer(x))), as in the comparison whose numbers the slides of
Luo et al. 2022 print (Dwivedi et al. 2020). A graph is read out as the sum of its nodes for
GIN, and as their mean for the others.

Differs from the papers: a layer norm stands for the batch norm, so that graphs of a batch
and padding do not change each other. Like there, kinds of edges are not read.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from everyformer.errors import InputError, refuse
from everyformer.layers.encodings.encoding import table
from everyformer.layers.graphs.batch import PADDING, GraphBatch
from everyformer.layers.graphs.graph import RESERVED
from everyformer.layers.graphs.graphormer import looked_up
from everyformer.layers.offsets import check_positive

KINDS = ("gin", "gcn", "gat")
SLOPE = 0.2
"""Of the LeakyReLU of GAT, below 0."""


@dataclass(frozen=True)
class MessagePassingConfig:
    """A model, complete but for its numbers.

    Attributes:
        kind: One of `KINDS`.
        layers: Blocks: a node hears others that are as many steps away.
        dim: Width of a state.
        heads: Of GAT.
        node_rows: Vectors of node ids; 0 is padding.
        dropout: On what a block adds.

    Raises:
        InputError: If the settings do not fit; all reasons at once.
    """

    kind: str
    layers: int
    dim: int
    heads: int = 8
    node_rows: int = 64
    dropout: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings that do not fit."""
        sizes = {n: v for n, v in asdict(self).items() if type(v) is int}
        check_positive(**sizes)
        wrong: list[str] = []
        if self.kind not in KINDS:
            wrong.append(f"kind={self.kind!r} is not one of {', '.join(KINDS)}")
        if self.kind == "gat" and self.dim % self.heads:
            wrong.append(f"dim={self.dim} is not a multiple of heads={self.heads}")
        if not 0 <= self.dropout < 1:
            wrong.append(f"dropout={self.dropout} must be from 0 to below 1")
        refuse("Such a graph network cannot be made", wrong)

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @property
    def parameters(self) -> int:
        """How many numbers the model has."""
        d = self.dim
        layer = {"gin": 1 + 2 * (d * d + d), "gcn": d * d + d, "gat": d * d + 3 * d}
        read_out = d * d + d + d + 1
        return self.node_rows * d + self.layers * (layer[self.kind] + 2 * d) + read_out

    def of_size(self, parameters: int) -> "MessagePassingConfig":
        """The same with the width whose number of parameters is nearest."""
        step = self.heads if self.kind == "gat" else 1
        made = replace(self, dim=step)
        while made.parameters < parameters:
            made = replace(made, dim=made.dim + step)
        less = replace(made, dim=max(made.dim - step, step))
        return min(less, made, key=lambda one: abs(one.parameters - parameters))


def neighbours(
    batch: GraphBatch, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "b n n"]:
    """A: 1 for pairs of nodes at distance 1, which the virtual node is not among.

    Example:
        >>> from everyformer.layers.graphs.batch import joined_graphs
        >>> neighbours(joined_graphs([([6, 7, 6], [(0, 1, 1), (1, 2, 1)])]))[0].tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    near = batch.distance[:, 1:, 1:] == RESERVED + 1
    itself = torch.eye(near.shape[-1], dtype=torch.bool, device=near.device)
    return (near & ~itself).to(dtype)


class GIN(nn.Module):
    """W_2 relu(W_1 ((1 + eps) x + A x) + b_1) + b_2."""

    def __init__(self, config: MessagePassingConfig) -> None:
        """Both layers as wide as a state; eps starts as 0."""
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.inner = nn.Linear(config.dim, config.dim)
        self.outer = nn.Linear(config.dim, config.dim)

    def forward(
        self, x: Float[Tensor, "b n d"], A: Float[Tensor, "b n n"]
    ) -> Float[Tensor, "b n d"]:
        """What each node makes of itself and of the sum of its neighbours."""
        return self.outer(torch.relu(self.inner((1 + self.eps) * x + A @ x)))


class GCN(nn.Module):
    """D^-1/2 (A + I) D^-1/2 x W + b, D the sums of the rows of A + I."""

    def __init__(self, config: MessagePassingConfig) -> None:
        """One linear map."""
        super().__init__()
        self.linear = nn.Linear(config.dim, config.dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.dim))

    def forward(
        self, x: Float[Tensor, "b n d"], A: Float[Tensor, "b n n"]
    ) -> Float[Tensor, "b n d"]:
        """A mean over neighbours and itself, weighed by degrees."""
        scale = (A.sum(-1, keepdim=True) + 1).rsqrt()
        y = scale * self.linear(x)
        return scale * (A @ y + y) + self.bias


class GAT(nn.Module):
    """sum_j softmax_j(LeakyReLU(a_1 W x_i + a_2 W x_j)) W x_j + b, heads side by side."""

    def __init__(self, config: MessagePassingConfig) -> None:
        """W, a_1 and a_2 of all heads."""
        super().__init__()
        self.heads = config.heads
        width = config.dim // config.heads
        self.linear = nn.Linear(config.dim, config.dim, bias=False)
        self.own = nn.Parameter(torch.empty(config.heads, width))
        self.other = nn.Parameter(torch.empty(config.heads, width))
        self.bias = nn.Parameter(torch.zeros(config.dim))
        for vector in (self.own, self.other):
            nn.init.xavier_uniform_(vector)

    def forward(
        self, x: Float[Tensor, "b n d"], A: Float[Tensor, "b n n"]
    ) -> Float[Tensor, "b n d"]:
        """Attention to neighbours and itself, by scores that are a sum of two numbers."""
        b, n, d = x.shape
        y = self.linear(x).view(b, n, self.heads, d // self.heads).transpose(1, 2)
        own = (y * self.own[:, None]).sum(-1)[..., :, None]  # [b, h, i, 1]
        other = (y * self.other[:, None]).sum(-1)[..., None, :]  # [b, h, 1, j]
        scores = nn.functional.leaky_relu(own + other, SLOPE)
        itself = torch.eye(n, dtype=A.dtype, device=A.device)
        seen = (A + itself)[:, None] > 0
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return (weights @ y).transpose(1, 2).reshape(b, n, d) + self.bias


LAYERS = {"gin": GIN, "gcn": GCN, "gat": GAT}


class MessagePassingBlock(nn.Module):
    """x + relu(norm(layer(x))); padding stays 0."""

    def __init__(self, config: MessagePassingConfig) -> None:
        """A layer of the kind of the config."""
        super().__init__()
        self.layer = LAYERS[config.kind](config)
        self.norm = nn.LayerNorm(config.dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        A: Float[Tensor, "b n n"],
        there: Bool[Tensor, "b n 1"],
    ) -> Float[Tensor, "b n d"]:
        """Hear the neighbours, then add."""
        return x + self.dropout(torch.relu(self.norm(self.layer(x, A)))) * there


class MessagePassingModel(nn.Module):
    """One number for each graph.

    Args:
        config: Its sizes.

    Example:
        >>> config = MessagePassingConfig("gin", layers=12, dim=1).of_size(489_481)
        >>> made = MessagePassingModel(config)
        >>> config.dim, sum(p.numel() for p in made.parameters()) == config.parameters
        (138, True)
    """

    def __init__(self, config: MessagePassingConfig) -> None:
        super().__init__()
        self.config = config
        self.nodes = table(config.node_rows, config.dim)
        self.blocks = nn.ModuleList(
            MessagePassingBlock(config) for _ in range(config.layers)
        )
        self.hidden = nn.Linear(config.dim, config.dim)
        self.read_out = nn.Linear(config.dim, 1)

    def check(self, batch: GraphBatch) -> None:
        """Refuse graphs that have no place in the table; to be called once, after loading.

        Raises:
            InputError: If a node id has no row.
        """
        largest = int(batch.nodes.max())
        if largest >= self.config.node_rows:
            msg = (
                f"These graphs do not fit the model: the node id {largest} is beyond the "
                f"{self.config.node_rows} rows of its table; raise node_rows."
            )
            raise InputError(msg)

    def forward(self, batch: GraphBatch) -> Float[Tensor, " b"]:
        """What the sum or the mean of all nodes says."""
        there = (batch.nodes != PADDING)[..., None]
        x, A = looked_up(self.nodes, batch.nodes), neighbours(batch, self.nodes.dtype)
        for block in self.blocks:
            x = block(x, A, there)
        read = (x * there).sum(1)
        if self.config.kind != "gin":
            read = read / there.sum(1)
        return self.read_out(torch.relu(self.hidden(read)))[:, 0]
