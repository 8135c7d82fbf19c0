"""Fixtures that more than one folder of tests uses: the throw-away Kubernetes of a run (`control_plane`)."""

from hypothesis import settings

# How long one example takes is the machine's business, not a test's.
settings.register_profile("stoker", deadline=None)
settings.load_profile("stoker")

pytest_plugins = ["testbed.fixtures"]
