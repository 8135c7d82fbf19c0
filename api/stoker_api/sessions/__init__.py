"""Sessions: a caller's WebSocket joined with one that a worker opened, for `exec` and `port-forward`.

No right to `pods/exec` is needed: the worker's own supervisor comes to the api, with its own token. Called by
`routes/sessions.py`.
"""
