"""Writes the checked-in files that are made from code: CRDs, tables in docs."""
