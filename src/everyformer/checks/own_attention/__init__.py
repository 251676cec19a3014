"""Theorem 3 of Luo et al. 2022 for attention that somebody else wrote."""
