"""HTTP only: each file reads a request, asks a service, writes an answer. Paths stand in full at each route, so that
metrics and the access test see them as clients do."""
