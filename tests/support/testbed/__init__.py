"""The test bed: a real Kubernetes, built from source and started on this machine for tests, then stopped again.

`build` makes the programs from tools/modules, `control_plane` runs etcd, API server, controllers and scheduler on
loopback (no root), `nodes` adds real nodes in network namespaces (root), `fixtures` hands both to pytest. Never
shipped, never imported by the product. Called by `make cluster`, `make nodes`, `make test` and `make e2e`.
"""
