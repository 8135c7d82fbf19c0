"""The recipes: each module owns a model, its data and its loss. Nothing outside of this package names a model."""
