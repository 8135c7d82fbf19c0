"""Sessions with workers: `stoker exec` and `stoker port-forward`. docs/api.md has the messages."""
