"""The `stoker` command and `stoker up`, on top of the Python client (`stoker.client`).

`commands/` holds one file per group of commands. Nothing here is imported by the rest of Stoker, and a bare install (no
FastAPI, numpy or torch) runs all of it but `stoker up`.
"""
