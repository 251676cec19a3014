"""What the operations of a module imply, whatever its weights."""
