"""What `everyformer inspect` takes, a sequence and a function, and its answer as JSON."""

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import typer

from everyformer.certify.certificate import Certificate
from everyformer.certify.certificate_file import read_certificate
from everyformer.cli.loading import load_target, read_input
from everyformer.errors import EveryformerError, InputError, printable
from everyformer.files.names import CERTIFICATE_FILE
from everyformer.model.insides import Inside
from everyformer.model.network import Network, StageState
from everyformer.narration.proof import Narration

Function = Callable[[np.ndarray], np.ndarray]

BOUNDS = ("low", "high", "e", "r")
"""Of a step of a program: its interval, its error, and what float64 adds."""


def one_sequence(
    network: Network, numbers: str | None, file: Path | None, sequence: int
) -> np.ndarray:
    """The sequence that is meant, shape (n, d): by --x, by --input, or spread out.

    Raises:
        typer.BadParameter: If the options do not say which.
        EveryformerError: If the network cannot take it.
    """
    if numbers is not None and file is not None:
        raise typer.BadParameter("Give either --x or --input: both name the tokens.")
    if file is not None:
        found = read_input(file, network)
        found = found.reshape(-1, *found.shape[-2:])
        if not 0 <= sequence < len(found):
            msg = f"--sequence {sequence}: {file} holds {len(found)}, from 0."
            raise typer.BadParameter(msg)
        return found[sequence]
    if sequence:
        msg = f"--sequence {sequence} chooses a sequence of --input. Give that, too."
        raise typer.BadParameter(msg)
    return spread_out(network) if numbers is None else read_numbers(network, numbers)


def read_numbers(network: Network, text: str) -> np.ndarray:
    """The tokens of --x: numbers, or fractions such as 1/3.

    Raises:
        typer.BadParameter: If they are not n d numbers.
        InputError: If the network cannot take them.
    """
    n, d = network.architecture.seq_len, network.architecture.d_model
    words = [word for word in re.split(r"[,;\s]+", text.strip("()[] ")) if word]
    numbers = [_read_number(word, text, network.is_exact) for word in words]
    if len(words) != n * d:
        given = f"{len(words)} number{'s' * (len(words) != 1)}"
        sizes = f"{n} token{'s' * (n > 1)} of {d} number{'s' * (d > 1)}"
        example = ",".join(f"0.{k % 9 + 1}" for k in range(min(n * d, 12)))
        more = ",..." if n * d > 12 else ""
        msg = f"--x has {given}, but the network takes {sizes}: {n * d} in all, token by"
        raise typer.BadParameter(f"{msg} token, such as {example}{more}.")
    array = np.array(numbers, dtype=object if network.is_exact else np.float64)
    return network.check_input(array.reshape(n, d))


def _read_number(word: str, text: str, is_exact: bool) -> Fraction | float:
    """One number of --x.

    Raises:
        typer.BadParameter: If it is not a finite number.
    """
    try:
        return Fraction(word) if is_exact else float(Fraction(word))
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        msg = f"--x {printable(text[:80])}: {printable(word[:80])} is not a finite number"
        said = "Write numbers such as 0.1 or 1/3, with commas between"
        raise typer.BadParameter(f"{msg}. {said}.") from error


def spread_out(network: Network) -> np.ndarray:
    """Tokens that differ, spread over the domain.

    Raises:
        InputError: If the domain is not known.
    """
    made = network.construction or network.program
    if made is None:
        msg = "This network does not know its domain. Give the tokens with --x or --input."
        raise InputError(msg)
    n = network.architecture.seq_len
    lows, highs = np.array(made.lows), np.array(made.highs)
    share = (np.arange(n) + 0.4) / n
    return network.check_input(lows + (highs - lows) * share[:, None])


def meant(
    weights: Path, name: str | None, network: Network
) -> tuple[Function | None, Certificate | None, str]:
    """f, the certificate of these weights, and where f is from, in words.

    Raises:
        EveryformerError: If the target given is not one, or has another size.
    """
    size = (network.architecture.seq_len, network.architecture.d_model)
    certificate, why = _certificate(weights, size)
    if name is not None:
        gallery = not name.rpartition(":")[0].endswith(".py")
        target = load_target(name, *(size if gallery else (None, None)))
        if (target.seq_len, target.d_model) != size:
            msg = (
                f"--target {name} takes {target.seq_len} tokens of {target.d_model}, the "
                f"network {size[0]} of {size[1]}. Give the target it was made for."
            )
            raise InputError(msg)
        return target, certificate, f"f is {printable(target.name)}, as given."
    f = None if certificate is None else certificate.statement.expression
    if f is None:
        return None, certificate, f"f(x) is not known: {why}. Name f with --target."
    return f, certificate, "f is the expression in the certificate."


def _certificate(weights: Path, size: tuple[int, int]) -> tuple[Certificate | None, str]:
    """The certificate beside weights if it is theirs; and why f is not in it."""
    folder = weights.parent
    if not (folder / CERTIFICATE_FILE).is_file():
        return None, "there is no certificate beside the network"
    try:
        found = read_certificate(folder)
    except (EveryformerError, OSError) as error:
        return None, printable(str(error)).rstrip(".")
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    if found.weights_sha256 != sha256 or (found.seq_len, found.d_model) != size:
        return None, "the certificate beside the network is of other weights"
    return found, "the certificate does not hold f itself"


def outside(certificate: Certificate | None) -> tuple[Function | None, str]:
    """What is known of f outside its domain, and in words."""
    if certificate is None or not certificate.everywhere:
        return None, "f(x) is not known: x lies outside the domain."
    return np.zeros_like, "f is 0 outside the box, by the certificate."


def is_inside(network: Network, x: np.ndarray) -> bool:
    """Whether x lies in the domain of f."""
    made = network.construction or network.program
    if made is None:
        return True
    values = np.asarray(x, dtype=np.float64)
    return bool(((values >= np.array(made.lows)) & (values <= np.array(made.highs))).all())


def to_json(
    network: Network,
    trace: Sequence[StageState],
    told: Narration,
    insides: Sequence[Inside],
    certificate: Certificate | None,
) -> dict[str, Any]:
    """A proof at one input, with every number in full.

    Rationals of exact networks are texts such as "1/3"; what is not finite is null.
    """
    made = network.construction or network.program
    claimed = None if certificate is None or certificate.eps is None else certificate
    f = told.f
    gap = None if f is None else np.abs(np.asarray(f - told.g, dtype=np.float64))
    return {
        "target": None if made is None else printable(made.target),
        "theorem": None
        if network.construction is None
        else printable(network.construction.theorem),
        "x": _numbers(told.x),
        "g": _numbers(told.g),
        "f": None if f is None else _numbers(f),
        "gap": None if gap is None else _numbers(gap),
        "claim_unchecked": None if claimed is None else printable(claimed.claim("f")),
        "states": [
            {
                "after": printable(one.stage),
                "tokens": _numbers(one.state),
                "ids": None if one.ids is None else _numbers(one.ids),
            }
            for one in trace
        ],
        "steps": [
            {
                "title": printable(one.title),
                "source": printable(one.source),
                "claim": printable(one.claim),
                "lines": [printable(line) for line in one.lines],
            }
            for one in told.chapters
        ],
        "program": [
            {
                "slot": one.step.slot,
                "what": printable(one.step.what),
                "line": printable(one.step.line),
                **{key: _number(getattr(one.step, key)) for key in BOUNDS},
                "value": _numbers(one.value),
                "ideal": _numbers(one.ideal),
            }
            for one in insides
        ],
    }


def _numbers(values: Any) -> Any:
    """Numbers of an array as nested lists."""
    array = np.asarray(values)
    return _number(array.item()) if array.ndim == 0 else [_numbers(one) for one in array]


def _number(value: Any) -> float | str | None:
    if isinstance(value, Fraction):
        return str(value)
    return float(value) if math.isfinite(value) else None
