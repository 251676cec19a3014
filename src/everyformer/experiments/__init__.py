"""Experiments of the papers, with what the papers print and what we measured."""
