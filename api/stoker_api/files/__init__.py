"""What jobs leave behind: listing it, and reading a file or a range of it.

`local.py` reads the data folder of one machine. Called by `routes/files.py` through `ports.JobFiles`.
"""
