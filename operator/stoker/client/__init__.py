"""The Python client (SDK) of Stoker's REST API: `from stoker import Client`.

Owns calls, their repeats, streams and shipping a folder of code. Never imports the command line, which is built on it.
Runs in a bare install (no FastAPI, numpy or torch).
"""
