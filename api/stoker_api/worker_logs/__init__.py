"""Logs that workers ship to the api (issue 4): kept in files here, read like any other log. On a cluster only."""
