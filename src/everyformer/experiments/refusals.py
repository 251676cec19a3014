"""What cannot work here is refused before the first cell is trained."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch

from everyformer.errors import TrainingError
from everyformer.experiments.cell import Cell, Size
from everyformer.train.config import TrainConfig, check
from everyformer.train.throughput import matrix_rate

PATIENCE = 6 * 3600.0
"""Seconds that cells may take on a CPU before they are refused there."""


def chosen_cells(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """The cells whose names match one of the patterns; all without a pattern.

    Raises:
        TrainingError: If a pattern matches none.
    """
    for pattern in only:
        if not any(fnmatchcase(cell.name, pattern) for cell in cells):
            msg = (
                f"--only {pattern} matches none of the {len(cells)} cells, such as "
                f"{cells[0].name} or {cells[-1].name}. * stands for anything."
            )
            raise TrainingError(msg)
    return [c for c in cells if not only or any(fnmatchcase(c.name, p) for p in only)]


def refuse_early(
    cells: Sequence[Cell],
    seconds: float | None,
    least_seconds: float,
    processes: int,
    device: torch.device,
) -> None:
    """Refuse what some cell would refuse.

    Raises:
        TrainingError: If the time is too short for any cell, a config cannot run here, or
            a run would never look at the clock.
    """
    if seconds is not None and seconds < least_seconds:
        msg = (
            f"{seconds:g} seconds are too few: no cell begins with less than "
            f"{least_seconds:g} left. Give more --minutes."
        )
        raise TrainingError(msg)
    for cell in cells:
        if "train" in cell.settings:
            config = TrainConfig.from_json(cell.settings["train"])
            check(config, processes, device)
            if seconds is not None and not config.evaluate_every:
                msg = (
                    f"{cell.name} has evaluate_every=0, and a run looks at the clock when "
                    "it evaluates. Set evaluate_every, or leave out --minutes."
                )
                raise TrainingError(msg)


def refuse_slow(cells: Sequence[Cell], size: Size, device: torch.device) -> None:
    """Refuse, without a GPU, cells whose operations would take it days.

    Raises:
        TrainingError: With the time that they would take.
    """
    operations = sum(cell.operations for cell in cells)
    if device.type == "cuda" or not operations:
        return
    rate = matrix_rate(device, torch.float32, size=512)
    seconds = operations / rate
    if seconds > PATIENCE:
        count = "1 cell is" if len(cells) == 1 else f"{len(cells)} cells are"
        fits_here = size in ("smoke", "small")
        given = f"These settings of --size {size} are" if fits_here else f"--size {size} is"
        advice = "Choose" if fits_here else "Use --size small, choose"
        msg = (
            f"{given} for a GPU, which this machine lacks: {count} {operations:.1e} "
            f"floating-point operations, {told_time(seconds)} or more at the "
            f"{rate / 1e9:,.0f} billion a second of this CPU. {advice} fewer cells with "
            "--only, or shorten them with --set steps=100."
        )
        raise TrainingError(msg)


def told_time(seconds: float) -> str:
    """A long time in words.

    Example:
        >>> told_time(7200.0), told_time(4e5), told_time(4e8)
        ('2.0 hours', '4.6 days', '12.7 years')
    """
    for unit, length in (("years", 365.25 * 86_400), ("days", 86_400), ("hours", 3600)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def too_little_memory(cell: Cell, device: torch.device) -> TrainingError:
    """What to do where a cell does not fit into memory."""
    where = f"{device}"
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        where = f"{torch.cuda.get_device_name(device)} ({total / 2**30:.0f} GiB)"
    return TrainingError(
        f"{cell.name} needs more memory than {where} has left. Split every update into "
        "parts that are computed one after the other, --set accumulation=4 (the same "
        "result up to rounding), or free the memory that other programs use."
    )
