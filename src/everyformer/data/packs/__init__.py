"""Packs: real texts as checked arrays of token ids, and how they are made."""
