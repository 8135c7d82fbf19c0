"""The job's lifecycle: from a job, its pods and the time to its next status and what to do to its pods.

Pure: no I/O, no clock, no event loop. `lifecycle.step` is the entry; `stoker.controller.jobs` carries its steps out.
Knows nothing of placing (`stoker.sched`).
"""
