"""Objectives: a label for every token, masked tokens, a class, a span."""
