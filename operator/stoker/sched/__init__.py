"""Placing: what waits, what is free, and which jobs start where. No I/O, no clock, no event loop.

`state` holds what is known, `decide` says what to start. Called by the operator for real, and by `stoker.why` in a
what-if. Knows nothing of pods' lifecycles (`stoker.life`) or of explanations (`stoker.why`).
"""
