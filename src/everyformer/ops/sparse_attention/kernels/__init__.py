"""Triton kernels: tiles for patterns with structure, edges for the others, joining."""
