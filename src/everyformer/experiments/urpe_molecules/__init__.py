"""Graphormer with URPE on molecules (Luo et al. 2022, slides): ZINC, and QM9."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from everyformer.experiments.claims import Claims, load_claims
from everyformer.experiments.expected import Expected, load_expected
from everyformer.experiments.experiment import Experiment
from everyformer.experiments.urpe_molecules.cells import cells_of, order_of
from everyformer.experiments.urpe_molecules.picture import picture

COLUMNS = {
    "without_structure": "without graph",
    "best_validation": "best validation",
    "best_at": "at update",
    "steps": "updates",
    "parameters": "parameters",
    "wall_s": "seconds",
}


def conditions(result: Mapping[str, Any]) -> str:
    """Molecules, model and training of a result."""
    model, task, train = (result["settings"][part] for part in ("model", "task", "train"))
    return (
        f"{task['pack']}; {model['layers']} x {model['dim']}; {train['steps']:,} updates "
        f"of {train['batch']}, rate {train['lr']:g}, tables {train['table_lr']:g} times "
        f"that, dropout {model['dropout']:g}, {train['precision']}"
    )


def _claims(*tasks: str) -> Claims:
    """The claims about these molecules: others are not of the same family."""
    found = load_claims(__name__)
    own = tuple(claim for claim in found.claims if claim["cell"]["task"] in tasks)
    return replace(found, claims=own)


def _expected(*tasks: str) -> Expected:
    """What the slides print about these molecules."""
    found = load_expected(__name__)
    own = tuple(e for e in found.entries if e["cell"].get("task", tasks[0]) in tasks)
    return replace(found, entries=own)


URPE_ZINC = Experiment(
    name="urpe-zinc",
    about="molecules of ZINC: Graphormer, with URPE, and with a gain that is a number",
    cells=cells_of("urpe-zinc"),
    expected=_expected("zinc12k", "zinc250k"),
    picture=picture,
    columns=COLUMNS,
    claims=_claims("zinc12k", "zinc250k"),
    conditions=conditions,
    order=order_of("urpe-zinc"),
    least_seconds=20.0,
)

URPE_QM9 = replace(
    URPE_ZINC,
    name="urpe-qm9",
    about="molecules of QM9, in place of PCQM4M: Graphormer with and without URPE",
    cells=cells_of("urpe-qm9"),
    expected=_expected("qm9-gap"),
    claims=_claims("qm9-gap"),
    order=order_of("urpe-qm9"),
)
