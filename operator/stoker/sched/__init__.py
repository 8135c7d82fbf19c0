"""The pure scheduler and the pure job lifecycle: state in, decisions and reasons out. No I/O, no clock, no event loop.

`state` holds what is known, `decide` says what to start, `explain` why a job waits and what would start it. The live
operator, the api's answers and every what-if call the same functions.
"""
