"""Users' code on the server: packs of files in, bundles out, and what becomes of those that nobody needs."""
