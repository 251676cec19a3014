"""`everyformer export`: a network in the format of another program."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everyformer.cli import options
from everyformer.cli.names import check_network
from everyformer.cli.saving import check_parent, new_file, resolved

if TYPE_CHECKING:
    from everyformer.model.network import Network

EXAMPLE = "everyformer export out/ --onnx network.onnx"

ENDINGS = {"onnx": (".onnx",), "torch": (".pt", ".pt2")}


def export(
    network: options.NetworkArgument,
    onnx: Annotated[
        Path | None,
        typer.Option(
            "--onnx",
            dir_okay=False,
            metavar="FILE.ONNX",
            help="Write an ONNX model in float64, one Scan for each stage.",
        ),
    ] = None,
    torch: Annotated[
        Path | None,
        typer.Option(
            "--torch",
            dir_okay=False,
            metavar="FILE.PT",
            help="Write PyTorch tensors: .pt, the state dict of network.to_torch(), for "
            "torch.load; .pt2, a program that torch.export.load runs without everyformer, "
            "for at most 500 blocks a stage.",
        ),
    ] = None,
    allow_rounding: Annotated[
        bool,
        typer.Option(
            "--allow-rounding", help="Round rational weights that float64 does not hold."
        ),
    ] = False,
) -> None:
    """Write a network in the format of another program.

    Give --onnx, --torch, or both. A file that exists is replaced. All numbers are float64:
    runtimes that know only float32 cannot run these networks.
    """
    asked = {"onnx": onnx, "torch": torch}
    given = {kind: path for kind, path in asked.items() if path is not None}
    if not given:
        msg = "Give --onnx FILE.onnx, --torch FILE.pt (or .pt2), or both."
        raise typer.BadParameter(msg)
    for kind, path in given.items():
        if path.suffix not in ENDINGS[kind]:
            names = " or ".join(ENDINGS[kind])
            raise typer.BadParameter(f"--{kind} {path} does not end in {names}.")
        check_parent(resolved(path), str(path))
    check_network(network)
    from everyformer.cli import tables
    from everyformer.cli.loading import load_network

    loaded = load_network(network).in_float64(allow_rounding=allow_rounding)
    for kind, path in given.items():
        write = _write_onnx if kind == "onnx" else _write_torch
        tables.show(f"Wrote {path}: {write(loaded, path)}.")


def _write_onnx(network: "Network", path: Path) -> str:
    from everyformer.errors import InputError

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "network.onnx"
        try:
            network.to_onnx(place)
        except ModuleNotFoundError as error:
            raise InputError(str(error)) from error
        if [one.name for one in Path(folder).iterdir()] != [place.name]:
            msg = (
                f"{path} would need a second file for its weights, which are larger than "
                "an ONNX file may be. Use network.to_onnx in Python, which writes both."
            )
            raise InputError(msg)
        with new_file(path) as file:
            file.write(place.read_bytes())
    return "an ONNX model, x (batch, n, d) to y"


def _write_torch(network: "Network", path: Path) -> str:
    import torch

    from everyformer.errors import MemoryLimitError
    from everyformer.model.torch_module import EXPORT_LIMIT

    deepest = max(network.stages, key=lambda stage: stage.blocks)
    if path.suffix == ".pt2" and deepest.blocks > EXPORT_LIMIT:
        msg = (
            f"{path}: the stage {deepest.name!r} has {deepest.blocks:,} blocks, and a "
            f"program that writes out each is for {EXPORT_LIMIT:,} at most. Write a state "
            "dict (--torch FILE.pt) or an ONNX model (--onnx), which keep loops."
        )
        raise MemoryLimitError(msg)
    module = network.to_torch()
    if path.suffix == ".pt":
        with new_file(path) as file:
            torch.save(module.state_dict(), file)
        return "the state dict, for torch.load and network.to_torch().load_state_dict"
    n, d = network.architecture.seq_len, network.architecture.d_model
    x = torch.zeros(2, n, d, dtype=torch.float64)
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (x,), dynamic_shapes=({0: batch},), strict=False)
    with new_file(path) as file:
        torch.export.save(program, file)
    return "a program, for torch.export.load"
