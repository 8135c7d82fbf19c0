"""Fixtures that more than one folder of tests uses: the throw-away Kubernetes of a run (`control_plane`)."""

pytest_plugins = ["testbed.fixtures"]
