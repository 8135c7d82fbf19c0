"""A folder of the user's code on its way to the server: what is shipped, its manifest, sending what the server lacks.

Owns the client's side of `docs/code.md`; what a manifest may hold is `stoker.spec.code`'s. Called by `client.py` and by
`stoker run` and `stoker submit`.
"""
