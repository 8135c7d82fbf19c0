"""The Python that a command runs with, as it is on the machine that submits: which one it is, and what of the
shipped folder is installed in it.

Owns looking; changes nothing there. Called by `stoker.client.code.placing` (docs/environments.md).
"""
