"""Our Graphormer beside public forms: one function, and nothing wrong is timed."""

import io

import pytest
import torch
from rich.console import Console
from torch import Tensor

from everyformer.bench import graphs
from everyformer.bench.graph_peers import as_lists
from everyformer.errors import EveryformerError
from everyformer.layers.graphs.batch import GraphBatch, joined_graphs
from everyformer.layers.graphs.graphormer import GraphormerModel

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_all_contenders_run_and_the_public_form_computes_the_same() -> None:
    report = graphs.run()
    assert report["error_sampled"] < 1e-5
    failed = [row for row in report["rows"] if "failed" in row]
    assert {row["failed"] for row in failed} <= {"torch-geometric is not installed"}
    ours, urpe, *_, public, _ = report["rows"]
    assert urpe["parameters"] == ours["parameters"] + 2 * 41
    assert public["parameters"] == ours["parameters"]
    assert ours["first_is_faster_by_sampled"] == 1.0
    told = io.StringIO()
    Console(file=told, width=140).print(graphs.table(report))
    assert "molecules / s" in told.getvalue()


def test_another_function_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours without distances and edges."""
    made = graphs.made_graphs(12, graphs.TINY.max_steps)
    plain = GraphormerModel.states

    def blind(self: GraphormerModel, batch: GraphBatch) -> Tensor:
        return plain(self, batch.without_structure())

    monkeypatch.setattr(GraphormerModel, "states", blind)
    with pytest.raises(EveryformerError, match="nothing is timed"):
        graphs.gate(graphs.TINY, made, torch.device("cpu"))


def test_a_batch_as_lists_of_nodes_and_edges() -> None:
    batch = joined_graphs([([6], []), ([7, 8, 9], [(0, 1, 2), (1, 2, 3)])], max_nodes=5)
    nodes, degrees, edges, kinds, graph = as_lists(batch)
    assert nodes.tolist() == [6, 7, 8, 9]
    assert degrees.tolist() == [1, 2, 3, 2]
    assert graph.tolist() == [0, 1, 1, 1]
    found = {(*pair, k) for pair, k in zip(edges.T.tolist(), kinds.tolist(), strict=True)}
    assert found == {(1, 2, 2), (2, 1, 2), (2, 3, 3), (3, 2, 3)}
