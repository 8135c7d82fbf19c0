"""Fetches what jobs name by `data[].url` into a cache: bounded, checked, unpacked, renamed into place.

A process of its own, with the network and the rights of the job that it fetches for: an init container of the worker's
pod, on one machine a child of the node agent. Owns the cache's layout. Imports nothing else of ours. `fsspec` knows how
to talk to stores; what is named and who may is decided before (`stoker.spec.data`).
"""
