"""CustomResourceDefinitions made from the models: what `kubectl` and the API server know of Stoker's objects.

`definition` puts a CRD together, `schema` walks the models, `words` reads their docstrings from the source, `rules` holds
what is said in CEL and what only the model knows. Pure: data in, plain dictionaries out. Called by
`tools/generate_crds.py` and by tests, never by a running operator or api (`words` reads source files).
"""
