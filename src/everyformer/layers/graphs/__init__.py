"""Graphs for attention: distances, batches, Graphormer, and layers that pass messages."""
