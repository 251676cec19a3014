"""Networks of selective shifts: plateaus of the quantiser, ids, windows, the clamp."""
