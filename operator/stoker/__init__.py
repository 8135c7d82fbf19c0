"""Stoker keeps GPUs fed: the client, the operator and the command line."""

__version__ = "0.1.0"
