"""Users' code on the server: packs of files in, bundles out, and the removal of unused ones."""
