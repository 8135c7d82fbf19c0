"""The supervisor: PID 1 of every worker (`docs/worker-contract.md`).

Owns a worker's processes from the first to the last: starts the ranks, carries their output into the log, honours a
stop, reaps every descendant and writes the exit record. Never imports anything but the standard library, and little of
that: a thousand trivial jobs must start fast. Started by the node agent (`python -I -S <this folder>/__main__.py
<launch.json> [--lock-fd N] [--ready-fd N] [--open-files N]`) or as a container's entry point (`worker.pyz --pod --
<argv…>`, from `start.sh`). Runs on Python 3.8 and later.
"""
