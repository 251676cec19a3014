"""Selective shifts: the constructions of the papers, dense, with URPE, and sparse."""
