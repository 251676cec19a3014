"""Molecules as graphs: tables of SMILES and a number to learn, as a pack.

RDKit (`pip install 'everyformer[molecules]'`) reads the SMILES when a pack is made; a pack
is read without it. Rings are kekulised, so that a bond is single, double or triple (1, 2,
3). The type of an atom is its symbol with its explicit hydrogens and its charge, such as
"N H2 +"; "N H1", which only marks where an aromatic ring has its hydrogen, counts as "N".

Atom ids are those of a vocabulary: [PAD] is 0, and types begin behind the special tokens.
Bonds are sorted by their later atom. `forward` is how far the later atom of a bond is from
that of the bond before (or from 0), `back` how far the earlier atom is behind it: small
numbers that compress well.
"""

import csv
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from everyformer.certify.shards import map_shards
from everyformer.data.packs.pack import Pack, new_pack
from everyformer.data.packs.penalised_logp import penalised_logp
from everyformer.data.packs.reading import SPECIALS, tokeniser_of
from everyformer.data.randomness import SPLITS, Split
from everyformer.errors import FileFormatError, InputError, TrainingError
from everyformer.progress import Progress, no_progress

MILLION = 1_000_000
"""Targets are stored in millionths."""

MOST_TARGET = 2147
"""So that millionths fit into 32 bits."""

BONDS = {"SINGLE": 1, "DOUBLE": 2, "TRIPLE": 3}
BOND_KINDS = len(BONDS)
ZINC_TYPES = (
    "C", "O", "N", "F", "C H1", "S", "Cl", "O -", "N H1 +", "Br", "N H3 +", "N H2 +",
    "N +", "N -", "S -", "I", "P", "O H1 +", "N H1 -", "O +", "S +", "P H1", "P H2",
    "C H2 -", "P +", "S H1 +", "C H1 -", "P H1 +",
)  # fmt: skip
"""They come first in every pack, so that all packs share them."""

MOST_ATOMS = 255
AT_ONCE = 1000
QM9_PARTS: Mapping[Split, int] = {"train": 110_000, "validation": 10_000, "test": 10_831}


class Row(NamedTuple):
    """A line of a table.

    Attributes:
        smiles: The molecule.
        target: What is to be learnt; None is computed (`penalised_logp`).
        split: Where it belongs.
        where: Which line of which file.
    """

    smiles: str
    target: float | None
    split: Split
    where: str


class Molecule(NamedTuple):
    """A molecule as a graph.

    Attributes:
        atoms: The type of each.
        bonds: Earlier atom, later atom, and kind: 1, 2 or 3.
    """

    atoms: tuple[str, ...]
    bonds: tuple[tuple[int, int, int], ...]


def need_rdkit() -> None:
    """Refuse to go on without RDKit.

    Raises:
        TrainingError: If it is not installed.
    """
    if find_spec("rdkit") is None:
        msg = (
            "SMILES are read with RDKit, which is not installed. Install it: pip install "
            "'everyformer[molecules]'. Packs that are made already need no RDKit."
        )
        raise TrainingError(msg)


def molecule(smiles: str, where: str = "The molecule") -> Molecule:
    """The graph of a molecule; several parts, such as a salt, make one disconnected graph.

    Args:
        smiles: As RDKit reads it.
        where: What the molecule is called in errors.

    Raises:
        InputError: If it cannot be read, is empty, or has a bond of another kind.
        TrainingError: If RDKit is not installed.

    Example:
        >>> molecule("C[NH3+]").atoms, molecule("C#N").bonds
        (('C', 'N H3 +'), ((0, 1, 3),))
    """
    need_rdkit()
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        found: Any = Chem.MolFromSmiles(smiles)
    if found is None or not found.GetNumAtoms():
        msg = (
            f"{where} is not a SMILES that RDKit can read: {smiles[:80]!r}. Correct it, or "
            "leave it out."
        )
        raise InputError(msg)
    Chem.Kekulize(found, clearAromaticFlags=True)
    bonds: list[tuple[int, int, int]] = []
    for bond in found.GetBonds():
        ends = sorted((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()))
        kind = str(bond.GetBondType())
        if kind not in BONDS:
            msg = (
                f"{where} has a bond of kind {kind} ({smiles[:80]!r}); "
                "single, double and triple ones are known. Leave the molecule out."
            )
            raise InputError(msg)
        bonds.append((ends[0], ends[1], BONDS[kind]))
    atoms = tuple(_type_of(atom) for atom in found.GetAtoms())
    return Molecule(atoms, tuple(sorted(bonds, key=lambda bond: (bond[1], bond[0]))))


def _type_of(atom: Any) -> str:
    hydrogens, charge = atom.GetNumExplicitHs(), atom.GetFormalCharge()
    name = atom.GetSymbol() + (f" H{hydrogens}" if hydrogens else "")
    if name == "N H1" and not charge:
        return "N"
    if not charge:
        return name
    more = str(abs(charge)) if abs(charge) > 1 else ""
    return f"{name} {'+' if charge > 0 else '-'}{more}"


def molecule_arrays(
    rows: Sequence[Row],
    *,
    workers: int = 1,
    work: Path | None = None,
    key: str = "",
    progress: Progress = no_progress,
) -> tuple[dict[str, np.ndarray], dict[str, int], dict[str, Any]]:
    """The arrays of a pack of molecules, its counts, and what its atom ids mean.

    `nodes` and `bonds` (uint8) are counts of each molecule, `splits` (uint8) and `targets`
    (int32, millionths) a number of it; `atoms` (uint8) has an id for each atom, `forward`,
    `back` and `kinds` (uint8) a number for each bond; `names` (uint8) are the names of all
    ids, one a line.

    Raises:
        InputError: If a molecule cannot be read or stored: which line.
    """
    need_rdkit()
    if not rows:
        raise InputError("There are no molecules. Give a table with at least one line.")
    count = -(-len(rows) // AT_ONCE)
    shards = map_shards(
        _shard, list(rows), count, what="read molecules", workers=workers, work=work,
        key=key, progress=progress,
    )  # fmt: skip
    found = [Molecule(*one) for shard in shards for one in shard["molecules"]]
    targets = [target for shard in shards for target in shard["targets"]]
    return stored_molecules(found, targets, [row.split for row in rows])


def molecule_pack(name: str, rows: Sequence[Row], licence: str = "") -> Pack:
    """A pack of one's own molecules, in memory.

    Raises:
        InputError: If a molecule cannot be read or stored: which line.
    """
    arrays, counts, tokeniser = molecule_arrays(rows)
    header = {"name": name, "licence": licence, "tokeniser": tokeniser}
    return new_pack({**header, "sources": {}, "counts": counts}, arrays)


def stored_molecules(
    found: Sequence[Molecule], targets: Sequence[float], split_of: Sequence[Split]
) -> tuple[dict[str, np.ndarray], dict[str, int], dict[str, Any]]:
    """As `molecule_arrays`, of molecules that are graphs already; needs no RDKit."""
    seen = dict.fromkeys(name for one in found for name in one.atoms)
    names = [*SPECIALS, *ZINC_TYPES, *(name for name in seen if name not in ZINC_TYPES)]
    if len(names) > MOST_ATOMS:
        msg = f"There are {len(names)} types of atoms; a pack holds {MOST_ATOMS}."
        raise InputError(msg)
    ids = {name: number for number, name in enumerate(names)}
    bonds = [bond for one in found for bond in one.bonds]
    later = np.array([bond[1] for bond in bonds], np.int64)
    first = np.array([not place for one in found for place in range(len(one.bonds))], bool)
    text = "\n".join(names).encode()
    splits = np.array([SPLITS.index(split) for split in split_of], np.uint8)
    arrays = {
        "nodes": np.array([len(one.atoms) for one in found], np.uint8),
        "bonds": np.array([len(one.bonds) for one in found], np.uint8),
        "splits": splits,
        "targets": np.array([round(MILLION * target) for target in targets], np.int32),
        "atoms": np.array([ids[name] for one in found for name in one.atoms], np.uint8),
        "forward": (later - np.where(first, 0, np.roll(later, 1))).astype(np.uint8),
        "back": np.array([bond[1] - bond[0] for bond in bonds], np.uint8),
        "kinds": np.array([bond[2] for bond in bonds], np.uint8),
        "names": np.frombuffer(text, np.uint8),
    }
    counts = {
        f"{split}_molecules": int((splits == k).sum()) for k, split in enumerate(SPLITS)
    }
    counts |= {"atoms": len(arrays["atoms"]), "bonds": len(bonds), "types": len(seen)}
    counts |= {"largest": int(arrays["nodes"].max())}
    return arrays, counts, tokeniser_of(hashlib.sha256(text).hexdigest(), names, SPECIALS)


def _shard(rows: list[Row], index: int) -> dict[str, Any]:
    found: list[Molecule] = []
    targets: list[float] = []
    for row in rows[index * AT_ONCE : (index + 1) * AT_ONCE]:
        one = molecule(row.smiles, row.where)
        if len(one.atoms) > MOST_ATOMS or len(one.bonds) > MOST_ATOMS:
            msg = (
                f"{row.where} has {len(one.atoms)} atoms and {len(one.bonds)} bonds; a "
                f"pack holds molecules of at most {MOST_ATOMS}. Leave it out."
            )
            raise InputError(msg)
        found.append(one)
        target = penalised_logp(row.smiles) if row.target is None else row.target
        if not abs(target) <= MOST_TARGET:
            msg = (
                f"{row.where} has the target {target}; a pack holds numbers from "
                f"-{MOST_TARGET} to {MOST_TARGET}. Give another unit, or leave it out."
            )
            raise InputError(msg)
        targets.append(target)
    return {"molecules": found, "targets": targets}


def zinc12k_rows(path: Path) -> list[Row]:
    """The 12,000 molecules of "Benchmarking GNNs", in the file's order."""
    known: dict[str, Split] = {"train": "train", "val": "validation", "test": "test"}
    known |= {"valid": "validation", "validation": "validation"}
    rows: list[Row] = []
    for where, line in _lines(path, ("split", "smiles", "target")):
        if line["split"] not in known:
            msg = f"{where} has the split {line['split']!r}, not one of {', '.join(known)}."
            raise FileFormatError(msg)
        target = _number(line["target"], where)
        rows.append(Row(line["smiles"], target, known[line["split"]], where))
    return rows


def zinc250k_rows(paths: Sequence[Path]) -> list[Row]:
    """All molecules of ZINC 250k: files of the training, validation and test molecules."""
    rows: list[Row] = []
    for split, path in zip(SPLITS, paths, strict=True):
        lines = path.read_text(encoding="utf-8").splitlines()
        rows += [
            Row(line.strip(), None, split, f"Line {number} of {path}")
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]
    return rows


def qm9_rows(path: Path, parts: Mapping[Split, int] = QM9_PARTS) -> list[Row]:
    """QM9 with its gap; split by the order of sha1 of the index."""
    found = list(_lines(path, ("index", "smiles", "gap_eV")))
    order = sorted(found, key=lambda one: hashlib.sha1(one[1]["index"].encode()).digest())
    ends = np.cumsum([parts[split] for split in SPLITS])
    if ends[-1] != len(found):
        msg = f"{path} has {len(found):,} molecules, not {ends[-1]:,}. Unpack it again."
        raise FileFormatError(msg)
    places = np.searchsorted(ends, np.arange(len(found)), side="right")
    split_of = {id(one[1]): SPLITS[place] for one, place in zip(order, places, strict=True)}
    return [
        Row(line["smiles"], _number(line["gap_eV"], where), split_of[id(line)], where)
        for where, line in found
    ]


def _number(text: str, where: str) -> float:
    """A target.

    Raises:
        FileFormatError: If the cell is not a number.
    """
    try:
        return float(text)
    except ValueError as error:
        msg = f"{where} has the target {text[:40]!r}, which is not a number."
        raise FileFormatError(msg) from error


def _lines(path: Path, wanted: Sequence[str]) -> Iterable[tuple[str, dict[str, str]]]:
    """Where each line of a table is, and its cells.

    Raises:
        FileFormatError: If a column or a cell is missing.
    """
    with path.open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file)
        missing = sorted(set(wanted) - set(table.fieldnames or ()))
        if missing:
            msg = f"{path} has no columns {', '.join(missing)}. Unpack it again."
            raise FileFormatError(msg)
        for line in table:
            where = f"Line {table.line_num} of {path}"
            if any(line[name] is None for name in wanted):
                raise FileFormatError(f"{where} is cut off. Unpack the file again.")
            yield where, line
