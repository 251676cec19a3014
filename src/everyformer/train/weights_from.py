"""Weights of an encoder, from the run that trained it to one that starts from it.

A run that has ended leaves `encoder.safetensors` in its folder. Its header holds the
identity of the run and the config of the encoder, so that a later run can refuse weights
that were trained otherwise than it says.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from everyformer.errors import InputError, TrainingError
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.train.objective import Objective
from everyformer.train.run_folder import differences, replace_whole

ENCODER = "encoder.safetensors"

FREE = ("dropout", "attention_dropout", "head", "labels", "pooler", "shorter")
"""Settings of an encoder in which two runs may differ: they change no shared weight."""


def identity_hash(identity: Mapping[str, Any]) -> str:
    """A name for a run: the sha256 of its identity."""
    told = json.dumps(json.loads(json.dumps(identity)), sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def write_encoder(folder: Path, objective: Objective, identity: Mapping[str, Any]) -> None:
    """Leave the encoder's weights in the folder of a run; whole or not at all.

    Tensors that two parts share, such as the embedding in a tied head, are written once.
    """
    encoder = objective.encoder
    config = encoder.config.to_json() if isinstance(encoder, Encoder) else None
    header = {"run": json.dumps(identity), "encoder": json.dumps(config)}
    tensors = {name: t.detach().cpu().contiguous() for name, t in _named(encoder).items()}
    replace_whole(folder / ENCODER, lambda file: file.write(save(tensors, header)))


def encoder_from(
    folder: Path, objective: Objective, wanted: Mapping[str, Any] | None = None
) -> str:
    """Set the encoder of an objective to the weights that a run left.

    What the file has beyond this encoder, such as a head, is not used; what this encoder
    has, the file must have.

    Args:
        folder: Of the run.
        objective: Whose encoder is set.
        wanted: The identity that the run must have; None takes any.

    Returns:
        The hash of the identity of the run.

    Raises:
        TrainingError: If the run has not ended here, was another one than wanted, or its
            encoder does not fit; settings and weights that differ are named.
    """
    run, config, tensors = _read(folder)
    told: list[str] = []
    if wanted is not None:
        told += differences(run, json.loads(json.dumps(wanted)))
    encoder = objective.encoder
    if isinstance(encoder, Encoder) and isinstance(config, dict):
        here = json.loads(json.dumps(encoder.config.to_json()))
        there = {name: value for name, value in config.items() if name not in FREE}
        kept = {name: value for name, value in here.items() if name not in FREE}
        told += differences(there, kept, "encoder")
    named = _named(encoder)
    told += [f"{name} is not there" for name in named if name not in tensors]
    told += [
        f"{name} has the shape {tuple(tensors[name].shape)} there and "
        f"{tuple(tensor.shape)} here"
        for name, tensor in named.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    if told:
        msg = (
            f"{folder / ENCODER} does not fit this run: {'; '.join(told)}. Train the "
            "parent with these settings, or give the settings of that parent."
        )
        raise TrainingError(msg)
    with torch.no_grad():
        for name, tensor in named.items():
            tensor.copy_(tensors[name])
    return identity_hash(run)


def trained_encoder(folder: Path) -> tuple[Encoder, dict[str, Any]]:
    """The encoder that a run left, with its weights, and the identity of the run.

    Raises:
        TrainingError: If the run left none, or its config does not fit its weights.
    """
    run, config, tensors = _read(folder)
    try:
        encoder = Encoder(EncoderConfig.from_json(config))
        named = _named(encoder)
        with torch.no_grad():
            for name, tensor in named.items():
                tensor.copy_(tensors[name])
    except (InputError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        msg = (
            f"{folder / ENCODER} does not hold an encoder of the library "
            f"({type(error).__name__}: {error}). Delete it, and resume that run."
        )
        raise TrainingError(msg) from error
    return encoder, run


def parent_hash(folder: Path) -> str:
    """The hash of the identity of the run that left weights in a folder.

    Raises:
        TrainingError: If it left none.
    """
    return identity_hash(_read(folder)[0])


def _read(folder: Path) -> tuple[dict[str, Any], Any, dict[str, Tensor]]:
    """Identity, config and weights in the file of a run."""
    path = folder / ENCODER
    if not path.is_file():
        msg = (
            f"The run that this one starts from has left no weights: there is no {path}. "
            "Train it first, to its end, on this machine."
        )
        raise TrainingError(msg)
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            run, config = json.loads(header["run"]), json.loads(header["encoder"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        msg = (
            f"{path} cannot be read as the weights of a run ({type(error).__name__}: "
            f"{error}). Delete it, and resume the run that wrote it."
        )
        raise TrainingError(msg) from error
    if not isinstance(run, dict):
        msg = f"{path} does not say which run wrote it. Delete it, and resume that run."
        raise TrainingError(msg)
    return run, config, tensors


def _named(encoder: nn.Module) -> dict[str, Tensor]:
    """Parameters, each once, and the buffers of a state dict."""
    kept = encoder.state_dict()
    named: dict[str, Tensor] = dict(encoder.named_parameters())
    return named | {n: b for n, b in encoder.named_buffers() if n in kept}
