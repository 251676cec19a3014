"""Two processes, each with half of a batch, train as one with all of it (DDP, gloo)."""

import socket
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from everyformer.layers import RelativeAttention

WORLD = 2
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
        losses.append(float(loss))
    return losses


def worker(rank: int, port: int, results: Any) -> None:
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=WORLD)
    layer = make_layer()
    half = make_batches()[:, rank::WORLD]
    losses = train(DistributedDataParallel(layer), half)
    results.put((rank, losses, [p.detach().numpy() for p in layer.parameters()]))
    dist.barrier()
    dist.destroy_process_group()


def test_two_processes_train_as_one() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    processes = [
        context.Process(target=worker, args=(rank, port, results)) for rank in range(WORLD)
    ]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    alone = make_layer()
    losses = train(alone, make_batches())
    mean = [sum(both) / WORLD for both in zip(*(one[1] for one in found), strict=True)]
    assert max(abs(a - b) for a, b in zip(mean, losses, strict=True)) < 1e-12
    assert losses[-1] < losses[0]
    for _, _, parameters in found:
        for ours, theirs in zip(alone.parameters(), parameters, strict=True):
            assert (ours.detach() - torch.from_numpy(theirs)).abs().max() < 1e-12
