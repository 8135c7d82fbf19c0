"""The `stoker` command, the Python client and `stoker up`.

`client.py` is the SDK (`from stoker.cli.client import Client`); `commands/` holds one file per group of commands.
Nothing here is imported by the rest of Stoker, and a bare install (no FastAPI, numpy or torch) runs all of it but
`stoker up`.
"""
