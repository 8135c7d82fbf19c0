"""What every run of tests has: the throw-away Kubernetes (`control_plane`), and its slowest files at the end."""

from hypothesis import settings

# How long one example takes is the machine's business, not a test's.
settings.register_profile("stoker", deadline=None)
settings.load_profile("stoker")

pytest_plugins = [
    "tests.support.testbed.fixtures",
    "tests.support.file_times",
    "tests.support.groups",
    "tests.support.nvml_fixtures",
]
