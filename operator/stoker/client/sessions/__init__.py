"""Sessions with a worker: a command in it, and its ports here. What is the terminal's is in `stoker.cli.sessions`."""
