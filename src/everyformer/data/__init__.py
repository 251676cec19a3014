"""Data: packs of real texts, and tasks whose examples are functions of their number."""
