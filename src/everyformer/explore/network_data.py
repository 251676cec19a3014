"""A network as the page runs it: weights, stages, constants, and its program."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from everyformer.certify.compile.insides import Errors, errors_at
from everyformer.certify.compile.prove import read_program
from everyformer.certify.compile.untold import Untold
from everyformer.certify.undecided import Undecided
from everyformer.construct.certificates import as_stored
from everyformer.errors import (
    EveryformerError,
    MemoryLimitError,
    NumberKindError,
    printable,
)
from everyformer.explore.embedding import embedded, finite_float
from everyformer.explore.links import NO_LINKS, Links
from everyformer.explore.sources import source_of
from everyformer.model.compiled import CompiledProgram, ProgramStep
from everyformer.model.construction import Construction
from everyformer.model.cost import count
from everyformer.model.network import Network
from everyformer.model.prefix import is_deaf
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage
from everyformer.targets.box import Box

MAX_BLOCKS = 100_000
"""Blocks up to which a page follows a drag without delay."""

MAX_BYTES = 96 * 2**20
"""Bytes of weights that a page may hold."""


def network_data(network: Network, links: Links = NO_LINKS) -> dict[str, Any]:
    """What the page's executor needs, and what its words are made from.

    Raises:
        MemoryLimitError: If the network is too large for a page.
        NumberKindError: If its weights are rationals that float64 cannot hold.
    """
    check_size(network)
    run = _in_float64(network)
    spec = run.architecture
    data: dict[str, Any] = {
        "n": spec.seq_len,
        "d": spec.d_model,
        "w": spec.inner_width,
        "prefix": spec.num_prefix,
        "heads": spec.num_heads,
        "normaliser": spec.normaliser,
        "className": spec.class_name,
        "blocks": run.blocks,
        "parameters": count(network).parameters,
        "deaf": spec.num_prefix > 0 and is_deaf(run.stages, spec.inner_width),
        "stages": [_stage(stage, links) for stage in run.stages],
        "positions": None if run.positions is None else embedded(run.positions),
        "registers": None,
        "construction": None,
        "program": _program(network),
    }
    if run.registers is not None:
        data["registers"] = _arrays(run.registers)
    if run.construction is not None:
        data["construction"] = _construction(run.construction)
    return data


def _in_float64(network: Network) -> Network:
    try:
        return network.in_float64()
    except NumberKindError as error:
        msg = (
            "The page computes in float64, which cannot hold some of this network's "
            "rational weights. Construct it with softened=true, whose weights are float64 "
            "numbers."
        )
        raise NumberKindError(msg) from error


def check_size(network: Network) -> None:
    """Refuse networks with which a page could not keep up.

    Raises:
        MemoryLimitError: With the sizes, and what to do.
    """
    held = sum(array.size for _, array in network.arrays() if array.strides[0]) * 8
    known = network.construction
    refuse_large(network.blocks, held, None if known is None else known.grid)


def refuse_large(blocks: int, held: int, grid: int | None) -> None:
    """The same for sizes that are planned.

    Args:
        blocks: The depth.
        held: Bytes of the weights.
        grid: K, if there is one.
    """
    if blocks <= MAX_BLOCKS and held <= MAX_BYTES:
        return
    coarser = "" if grid is None else f" Its grid is K = {grid}: use a smaller --grid."
    msg = (
        f"The network has {blocks:,} blocks and {held / 2**20:,.0f} MiB of weights. A page "
        f"runs every block after each move of a token, and stays fluent up to "
        f"{MAX_BLOCKS:,} blocks and {MAX_BYTES / 2**20:.0f} MiB.{coarser} Methods such as "
        "averaging and compile need far fewer blocks."
    )
    raise MemoryLimitError(msg)


def _stage(stage: Stage, links: Links) -> dict[str, Any]:
    return {
        "name": printable(stage.name),
        "source": printable(stage.source),
        "kind": stage.kind,
        "blocks": stage.blocks,
        "attention": None if stage.attention is None else _attention(stage.attention),
        "feedForward": None
        if stage.feed_forward is None
        else _feed_forward(stage.feed_forward),
        "code": source_of(stage, links),
    }


def _attention(stack: AttentionStack) -> dict[str, Any]:
    h, m = stack.W_Q.shape[1:3]
    return {"h": h, "m": m, **_arrays(stack)}


def _feed_forward(stack: FeedForwardStack) -> dict[str, Any]:
    phi = stack.phi
    return {
        "r": stack.W_1.shape[1],
        **{name: embedded(getattr(stack, name)) for name in ("W_1", "b_1", "W_2", "b_2")},
        "phi": None if phi is None else _arrays(phi),
    }


def _arrays(held: Any) -> dict[str, Any]:
    """The fields of a dataclass of arrays, without those that are None."""
    found = {field.name: getattr(held, field.name) for field in fields(held)}
    return {name: embedded(one) for name, one in found.items() if one is not None}


def _construction(known: Construction) -> dict[str, Any]:
    ids = known.ids
    return {
        "theorem": printable(known.theorem),
        "paper": printable(known.paper),
        "target": printable(known.target),
        "grid": known.grid,
        "lows": list(known.lows),
        "highs": list(known.highs),
        "reach": finite_float(known.reach) or 0.0,
        "ramp": finite_float(known.ramp_width) or 0.0,
        "sharpness": finite_float(known.sharpness) or 0.0,
        "ids": None
        if ids is None
        else {
            "direction": [finite_float(u) or 0.0 for u in ids.direction],
            "low": finite_float(ids.low) or 0.0,
            "high": finite_float(ids.high) or 0.0,
        },
    }


def _program(network: Network) -> dict[str, Any] | None:
    """The steps of a compiled network, with the errors that the verifier finds now."""
    said = network.program
    if said is None:
        return None
    errors, problem = proved_errors(network, said, said.steps)
    rows: list[dict[str, Any]] = []
    for step, (low, high, e, r) in zip(said.steps, errors, strict=True):
        numbers = {"low": low, "high": high, "e": e, "r": r}
        rows.append(asdict(step) | {k: finite_float(v) for k, v in numbers.items()})
    return {
        "target": printable(said.target),
        "lows": list(said.lows),
        "highs": list(said.highs),
        "listing": list(said.listing),
        "steps": rows,
        "note": problem or "Intervals and errors were found by the verifier just now.",
    }


def proved_errors(
    network: Network, said: CompiledProgram, steps: Sequence[ProgramStep]
) -> tuple[list[Errors], str]:
    """What the verifier finds now for steps of a program; and why nothing, if so.

    What is stored beside the weights is what somebody says.
    """
    try:
        known = read_program(as_stored(network), Box(said.lows, said.highs), Untold())
        return errors_at(known, ((step.slot, step.reads) for step in steps)), ""
    except (Undecided, EveryformerError, IndexError, OverflowError, ValueError) as error:
        nothing = (1.0, 0.0, 0.0, 0.0)
        why = f"No errors are proved: {printable(str(error))}"
        return [nothing] * len(steps), why
