"""Proofs for networks that were compiled from a program."""
