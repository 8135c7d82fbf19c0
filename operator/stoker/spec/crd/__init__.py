"""CustomResourceDefinitions made from the models: what `kubectl` and the API server know of Stoker's objects.

`definition` puts a CRD together, `schema` walks the models, `rules` holds what is said in CEL, `reference` writes
docs/crds.md's tables. Pure: data in, plain dictionaries and text out.
Called by `tools/` and by tests, never by a running operator or api.
"""
