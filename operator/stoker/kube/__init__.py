"""The Kubernetes adapter: the only importer of the `kubernetes` package. Owns no product rule."""
