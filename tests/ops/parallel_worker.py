"""Trains one layer on this process's share of fixed batches; torchrun starts it."""

import gc
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from everyformer.layers import RelativeAttention

STEPS = 3


def make_layer() -> RelativeAttention:
    torch.manual_seed(0)
    return RelativeAttention(8, 2, encoding="t5", gain=True, max_len=6).double()


def make_batches() -> torch.Tensor:
    source = torch.Generator().manual_seed(1)
    return torch.randn(STEPS, 4, 6, 8, generator=source, dtype=torch.float64)


def train(layer: nn.Module, batches: torch.Tensor) -> list[float]:
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    losses: list[float] = []
    for batch in batches:
        optimiser.zero_grad()
        loss = (layer(batch) - batch.flip(-2)).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    layer = make_layer()
    losses = train(DistributedDataParallel(layer), make_batches()[:, rank::world])
    parameters = [p.detach().tolist() for p in layer.parameters()]
    found = {"losses": losses, "parameters": parameters}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
    gc.collect()  # the wrapped layer, which holds the group and its threads


if __name__ == "__main__":
    assert "RANK" in os.environ, "start it by torchrun"
    main(Path(sys.argv[1]))
