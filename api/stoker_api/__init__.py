"""The control plane's REST api: submits, shows and follows jobs over a store (`stoker_api.app.create_app`).

Owns HTTP: routes, tokens, problem documents, streams, live progress. Never talks to the operator or to a worker
(workers post to it) and never decides anything about a running job: it writes what was asked into the store. The
process that serves it is composed by `stoker up`.
"""
