"""Proofs on a real `stoker up` or API server, one script each: docs/verify.md holds what they showed."""
