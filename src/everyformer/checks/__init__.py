"""Is this map, mask or encoding what a theorem needs? Verdicts with their reasons."""
