"""From SMILES to a trained model.

Graphormer with URPE learns a property of molecules: SMILES become graphs, graphs become a
batch, and attention learns how much nodes at each distance count. Needs RDKit
(`pip install 'everyformer[molecules,train]'`); ten minutes on a laptop, seconds with
`--smoke`.
"""

# %%
import sys
from itertools import product

from everyformer.data.molecules import MoleculeGraphs, Molecules
from everyformer.data.packs.molecules import Row, molecule, molecule_pack
from everyformer.data.packs.penalised_logp import penalised_logp
from everyformer.data.randomness import Split, mixed_key
from everyformer.layers.graphs.graphormer import GraphormerConfig, GraphormerModel
from everyformer.train.config import TrainConfig
from everyformer.train.loop import train
from everyformer.train.objectives.regress import Regress

smoke = "--smoke" in sys.argv

# %% [markdown]
# ## A molecule is a graph
#
# Atoms are nodes, bonds are edges. RDKit reads the SMILES; rings are kekulised, so that a
# bond is single, double or triple. This is aspirin:

# %%
aspirin = molecule("CC(=O)Oc1ccccc1C(=O)O")
print("atoms:", " ".join(aspirin.atoms))
print("bonds:", " ".join(f"{i}{' -=#'[kind]}{j}" for i, j, kind in aspirin.bonds))

# %% [markdown]
# ## Molecules to learn from
#
# Without any file: pieces that can be written one after the other make some two thousand
# molecules. What is to be learnt is the penalised logP of ZINC, which RDKit computes. With
# molecules of your own, make a `Row` of each line of your table: SMILES, number, split,
# and what the line is called in an error.

# %%
pieces = (
    "C", "CC", "C(C)C", "N", "O", "C(=O)N", "C(=O)O", "S(=O)(=O)", "C(F)(F)", "C=C",
    "c1ccc(cc1)", "c1cc(ccn1)", "C1CCC(CC1)", "C1CCN(CC1)", "c1csc(n1)",
)  # fmt: skip


def split_of(number: int) -> Split:
    """One of ten for validation, one for the test."""
    place = mixed_key(number) % 10
    return "validation" if place == 0 else "test" if place == 1 else "train"


joined = sorted(
    (f"{first}{middle}{last}C" for first, middle, last in product(pieces, repeat=3)),
    key=lambda smiles: mixed_key(*smiles.encode()),
)
kept = joined[: 80 if smoke else 2000]
rows = [
    Row(smiles, penalised_logp(smiles), split_of(number), f"Molecule {number}")
    for number, smiles in enumerate(kept)
]
graphs = MoleculeGraphs(molecule_pack("pieces", rows), max_steps=8)
task = Molecules(graphs, seed=0)
print(f"{len(rows)} molecules of at most {graphs.max_nodes} atoms, such as {kept[0]}")

# %% [markdown]
# ## A model
#
# Twelve layers of width 80 are what the papers use; six of 48 do here. `gain="urpe"`
# multiplies every weight of attention by a learnt number for the distance of its two atoms;
# `gain="none"` is plain Graphormer. Distances and edges were looked up once, when the
# graphs were made, and all layers share B and C.

# %%
config = GraphormerConfig(
    gain="urpe", layers=2 if smoke else 6, dim=16 if smoke else 48, heads=4, ffn=48,
    max_steps=8, distance_rows=8, dropout=0.0, attention_dropout=0.0, input_dropout=0.0,
)  # fmt: skip
mean, scale = graphs.moments()


def build() -> Regress:
    """The model with its loss, for targets of that mean and deviation."""
    return Regress(GraphormerModel(config), mean, scale)


# %% [markdown]
# ## Training
#
# The tables of B and C move slowly, so they have a rate of their own.

# %%
steps = 60 if smoke else 1200
outcome = train(
    build,
    task,
    TrainConfig(
        steps=steps, batch=32, lr=4e-3 if smoke else 1e-3, table_lr=10.0,
        warmup=steps // 10, clip=5.0, weight_decay=0.01, decay_biases=False,
        log_every=steps // 6,
    ),
    watch=lambda line: print(f"update {line['step']:5d}: loss {line['loss']:.3f}"),
)  # fmt: skip

# %% [markdown]
# ## What came out
#
# The error on molecules that were not trained on, beside that of saying the mean; and the
# error once every distance is 1 and no bond is left: how much does the model use the graph?

# %%
test = outcome.test
spread = abs(graphs.targets[graphs.members("test")] - mean).mean()
print(f"error of the mean:   {spread:.3f}")
print(f"error of the model:  {test['mae'].mean_sampled:.3f}")
print(f"without the graph:   {test['mae_without_structure'].mean_sampled:.3f}")

# %% [markdown]
# ## What URPE learnt
#
# C by distance, the mean over heads, and how far heads differ. 1 changes nothing.

# %%
gains = outcome.positions["C by distance"]
for distance in range(6):
    column = gains[:, 2 + distance]
    print(f"C({distance}) = {column.mean():.3f} ± {column.std():.3f}")
print(f"C(virtual node) = {gains[:, 0].mean():.3f}")
