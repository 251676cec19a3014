"""Molecules: from SMILES to a pack, and from a pack to graphs on the device."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from everyformer.data.batch import FILLING, Draw
from everyformer.data.molecules import MoleculeGraphs, Molecules
from everyformer.data.packs import making
from everyformer.data.packs.making import make_pack
from everyformer.data.packs.molecule_excerpt import molecule_excerpt
from everyformer.data.packs.molecules import (
    MILLION,
    ZINC_TYPES,
    Row,
    molecule,
    molecule_arrays,
    molecule_pack,
    qm9_rows,
    zinc12k_rows,
    zinc250k_rows,
)
from everyformer.data.packs.pack import Pack, read_pack
from everyformer.data.packs.penalised_logp import cycle_basis, penalised_logp
from everyformer.data.packs.reading import SPECIALS
from everyformer.data.packs.sources import Recipe
from everyformer.errors import FileFormatError, InputError, TrainingError

pytest.importorskip("rdkit")
CPU = torch.device("cpu")
TABLE = """split,index,smiles,logP,SA,cycle,target
train,0,c1cc[nH]c1,0,0,0,1.5
train,1,C[N+](C)(C)CC#N,0,0,0,-0.25
val,2,[Na+].[Cl-],0,0,0,-42.289493
val,3,C,0,0,0,0.000001
test,4,O=C(O)C1CC1,0,0,0,3
test,5,C[C@H](N)O,0,0,0,0
"""


def test_rings_are_kekulised_and_types_are_those_of_the_benchmark() -> None:
    pyrrole = molecule("c1cc[nH]c1")
    assert pyrrole.atoms == ("C", "C", "C", "N", "C"), "N H1 counts as N"
    assert sorted(kind for *_, kind in pyrrole.bonds) == [1, 1, 1, 2, 2]
    assert molecule("C[C@H](N)O").atoms == ("C", "C H1", "N", "O")
    assert molecule("[O-][N+](=O)C").atoms == ("O -", "N +", "O", "C")
    assert molecule("[Ca+2]").atoms == ("Ca +2",)
    assert molecule("[Na+].[Cl-]").bonds == ()


def test_a_pack_from_a_table_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Salts, single atoms, negative targets; and the same without RDKit."""
    (tmp_path / "zinc").mkdir()
    (tmp_path / "zinc" / "zinc12k.csv").write_text(TABLE)
    recipe = Recipe("zinc12k", "molecules", "", {"zinc/zinc12k.csv": ""}, "", 1, 1, ())
    sources = {"zinc/zinc12k.csv": "0" * 64}
    monkeypatch.setattr(making, "checked_sources", lambda *_: sources)  # pyright: ignore
    path = make_pack(recipe, tmp_path, tmp_path / "packs")
    pack = read_pack(path)
    graphs = MoleculeGraphs(pack)
    batch, targets = graphs.on(CPU)
    assert graphs.max_nodes == 7
    assert (pack.arrays["targets"] / MILLION).tolist() == pytest.approx(
        [1.5, -0.25, -42.289493, 1e-6, 3, 0]
    )
    assert targets[2] == pytest.approx(-42.289493)
    names = bytes(pack.arrays["names"]).decode().split("\n")
    assert names[: len(SPECIALS) + 1] == [*SPECIALS, ZINC_TYPES[0]]
    assert [names[i] for i in batch.nodes[2] if i] == ["Na +", "Cl -"]
    assert batch.distance[2, 1, 2] == 1, "two ions: unreachable"
    assert batch.distance[0, 1:6, 1:6].sum() == 5 * 2 + 10 * 3 + 10 * 4, "a ring of five"
    assert batch.paths[1, 6, 7].tolist() == [3] + [0] * 19, "C#N"
    assert [len(graphs.members(s)) for s in ("train", "validation", "test")] == [2, 2, 2]
    monkeypatch.setitem(sys.modules, "rdkit", None)  # as if it were not installed
    assert len(MoleculeGraphs(read_pack(path)).targets) == 6
    with pytest.raises(TrainingError, match=r"pip install 'everyformer\[molecules\]'"):
        molecule("C")


@pytest.mark.parametrize("smiles", ["", "C1CC", "not a molecule", "C(C)(C)(C)(C)C"])
def test_smiles_that_do_not_parse_are_refused_with_their_line(smiles: str) -> None:
    rows = [Row("C", 0.0, "train", "Line 2 of a.csv"), Row(smiles, 0.0, "test", "Line 3")]
    with pytest.raises(InputError, match="Line 3 is not a SMILES") as refused:
        molecule_arrays(rows)
    assert repr(smiles) in str(refused.value)


def test_molecules_that_cannot_be_stored_are_refused() -> None:
    long = [Row("C" * 300, 0.0, "train", "Line 9")]
    with pytest.raises(InputError, match="Line 9 has 300 atoms and 299 bonds"):
        molecule_arrays(long)
    with pytest.raises(InputError, match="Line 1 has a bond of kind DATIVE"):
        molecule_arrays([Row("[NH3]->[Cu]", 0.0, "train", "Line 1")])
    for target in (float("nan"), float("inf"), -2148.0):
        with pytest.raises(InputError, match=f"Line 4 has the target {target}"):
            molecule_arrays([Row("C", target, "train", "Line 4")])
    with pytest.raises(InputError, match="no molecules"):
        molecule_arrays([])
    with pytest.raises(InputError, match="Graph 0 has 5 nodes, and the model reads at"):
        MoleculeGraphs(_pack(["CCCCC", "C", "C"]), max_nodes=4)


def test_tables_that_are_cut_off_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("index,smiles\n1,C\n")
    with pytest.raises(FileFormatError, match="has no columns gap_eV"):
        qm9_rows(path)
    path.write_text("index,smiles,gap_eV\n1,C\n")
    with pytest.raises(FileFormatError, match=r"Line 2 of .* is cut off"):
        qm9_rows(path)
    path.write_text("index,smiles,gap_eV\n1,C,2.5\n2,C,wide\n")
    with pytest.raises(FileFormatError, match=r"Line 3 .* 'wide', which is not a number"):
        qm9_rows(path, {"train": 2, "validation": 0, "test": 0})
    path.write_text("split,smiles,target\nspare,C,2.5\n")
    with pytest.raises(FileFormatError, match=r"Line 2 .* has the split 'spare'"):
        zinc12k_rows(path)
    path.write_text("index,smiles,gap_eV\n1,C,2.5\n")
    with pytest.raises(FileFormatError, match="has 1 molecules, not 130,831"):
        qm9_rows(path)


def test_splits_of_qm9_and_of_zinc(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("index,smiles,gap_eV\n" + "".join(f"{i},C,{i}.5\n" for i in range(9)))
    rows = qm9_rows(path, {"train": 4, "validation": 2, "test": 3})
    assert [row.target for row in rows] == [i + 0.5 for i in range(9)]
    split = [row.split for row in rows]
    assert [split.count(s) for s in ("train", "validation", "test")] == [4, 2, 3]
    files = [tmp_path / name for name in ("train", "valid", "test")]
    for place, file in enumerate(files):
        file.write_text("C\n\nCC\n" if place < 2 else "C\n")
    found = zinc250k_rows(files)
    assert [row.where.split()[1] for row in found] == ["1", "3", "1", "3", "1"]
    assert [row.split for row in found] == ["train"] * 2 + ["validation"] * 2 + ["test"]


def test_the_target_of_zinc() -> None:
    """Literals of `zinc12k.csv`; a ring of eight is two beyond six."""
    smiles = "COc1ccc2ccc(O)c(CN3CCN(S(=O)(=O)c4ccn(C)c4)CC3)c2c1"
    assert penalised_logp(smiles) == pytest.approx(0.837321, abs=1e-6)
    ring = {i: sorted({(i - 1) % 8, (i + 1) % 8}) for i in range(8)}
    assert [len(one) for one in cycle_basis(ring)] == [8]
    assert cycle_basis({0: [1], 1: [0], 2: []}) == []


def _pack(smiles: list[str]) -> Pack:
    rows = [
        Row(one, float(k), split, f"Line {k}")
        for k, (one, split) in enumerate(
            zip(smiles, ("train", "validation", "test"), strict=True)
        )
    ]
    return molecule_pack("mine", rows)


@pytest.mark.parametrize(
    ("name", "factor", "more"),
    [
        ("nodes", 1, 1),
        ("kinds", 0, 4),
        ("splits", 0, 3),
        ("atoms", 0, 0),
        ("back", 0, 0),
        ("back", 1, 200),
        ("forward", 1, 100),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(
    name: str, factor: int, more: int
) -> None:
    pack = molecule_excerpt()
    MoleculeGraphs(pack)
    array = (factor * pack.arrays[name] + more).astype(pack.arrays[name].dtype)
    with pytest.raises(FileFormatError, match="Make the pack anew"):
        MoleculeGraphs(Pack(pack.header, {**pack.arrays, name: array}))
    without = {key: a for key, a in pack.arrays.items() if key != name}
    with pytest.raises(FileFormatError, match="of another kind"):
        MoleculeGraphs(Pack(pack.header, without))


def test_a_batch_is_a_function_of_its_numbers() -> None:
    graphs = MoleculeGraphs(molecule_excerpt())
    task = Molecules(graphs, 3)
    count = len(graphs.members("train"))
    epochs = [
        task.batch("train", Draw(torch.arange(k, k + count), 17)).labels.tolist()
        for k in (0, count)
    ]
    own = graphs.targets[graphs.members("train")]
    assert all(sorted(e) == pytest.approx(sorted(own)) for e in epochs)
    assert epochs[0] != epochs[1]
    parts = [task.draw(5, 8, part, 2, CPU).numbers.tolist() for part in (0, 1)]
    assert parts == [[40, 41, 42, 43], [44, 45, 46, 47]]
    batch = task.batch("test", Draw(torch.tensor([2, FILLING]), 17))
    assert batch.weights.tolist() == [1, 0]
    assert batch.labels[0] == pytest.approx(graphs.targets[graphs.members("test")][2])
    draws = list(task.evaluation("test", 5, 0, 2, CPU))
    seen = [int(i) for draw in draws for i in draw.numbers]
    seen += [int(i) for draw in task.evaluation("test", 5, 1, 2, CPU) for i in draw.numbers]
    assert sorted(i for i in seen if i != FILLING) == list(range(32))
    assert np.array_equal(task.clusters("test"), np.arange(32))
