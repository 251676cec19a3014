"""Networks for other programs, which compute the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest
import torch

import everyformer as ef

Command = Callable[..., Any]


def test_onnx_and_a_state_dict(everyformer: Command, swap_mean_4: Path) -> None:
    arguments = ("export", swap_mean_4, "--onnx", "g.onnx", "--torch", "g.pt")
    shown = everyformer(*arguments).stdout
    assert "Wrote g.onnx" in shown
    assert "Wrote g.pt" in shown
    network = ef.load(swap_mean_4 / "network.safetensors")
    x = np.random.default_rng(0).random((5, 3, 1))
    session: Any = onnxruntime.InferenceSession("g.onnx")
    assert np.abs(session.run(None, {"x": x})[0] - network(x)).max() < 1e-12
    module = network.to_torch()
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
    module.load_state_dict(torch.load("g.pt", weights_only=True))
    with torch.no_grad():
        assert np.abs(module(torch.tensor(x)).numpy() - network(x)).max() < 1e-12


@pytest.mark.compile
def test_a_program_runs_without_everyformer(everyformer: Command, tmp_path: Path) -> None:
    built = ef.construct(ef.targets.reverse(2, 1), grid=2, method="averaging")
    built.save("out")
    everyformer("export", "out", "--torch", "g.pt2")
    x = np.random.default_rng(0).random((3, 2, 1))
    module = torch.export.load("g.pt2").module()
    with torch.no_grad():
        assert np.abs(module(torch.tensor(x)).numpy() - built.network(x)).max() < 1e-12
        assert module(torch.tensor(x[:1])).shape == (1, 2, 1)


def test_what_cannot_be_written_is_refused(everyformer: Command, swap_mean_4: Path) -> None:
    def refused(*arguments: object) -> str:
        said = everyformer("export", *arguments, code=2).stderr
        return " ".join(said.replace("│", " ").split())

    assert "Give --onnx FILE.onnx" in refused(swap_mean_4)
    assert "--onnx g.pt does not end in .onnx" in refused(swap_mean_4, "--onnx", "g.pt")
    assert "does not end in .pt or .pt2" in refused(swap_mean_4, "--torch", "g.bin")
    assert "parent folder does not exist" in refused(swap_mean_4, "--onnx", "no/g.onnx")
    exact = ef.SelectiveShifts(softened=False)
    built = ef.construct(ef.targets.reverse(2, 1), grid=3, method=exact)
    built.network.save("exact.safetensors")
    assert "rounded" in refused("exact.safetensors", "--onnx", "g.onnx")
    assert not Path("g.onnx").exists()


def test_a_deep_network_is_no_program(everyformer: Command) -> None:
    ef.construct(ef.targets.reverse(2, 1), grid=32).network.save("deep.safetensors")
    said = everyformer("export", "deep.safetensors", "--torch", "g.pt2", code=2).stderr
    assert "2,048 blocks" in said
    assert "--torch FILE.pt" in said
    assert not Path("g.pt2").exists()


def test_the_version(everyformer: Command) -> None:
    assert everyformer("--version").stdout == f"everyformer {ef.__version__}\n"
