"""Without a GPU, Triton interprets its kernels: it must hear of that before its import.

An export asks torch's dispatcher for all operators, dozens of times; here once for each
list of operators that are registered, which is a quarter of the time of an export.
"""

import os

import pytest
import torch
from torch._export import utils as export_utils

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

_find_all_operators = export_utils._materialize_cpp_cia_ops  # pyright: ignore[reportPrivateUsage]
_found: list[list[str]] = []


def _find_new_operators() -> None:
    listed: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key(  # pyright: ignore
        "CompositeImplicitAutograd"
    )
    if listed not in _found:
        _find_all_operators()
        _found[:] = [listed]


export_utils._materialize_cpp_cia_ops = _find_new_operators  # pyright: ignore[reportPrivateUsage]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """How well weights can be fitted is told, and decides nothing."""
    monkeypatch.setattr("everyformer.checks.rules.attentive.FIT_STEPS", 1)
