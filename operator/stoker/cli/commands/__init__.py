"""One file per group of commands. `main.py` imports a file when one of its commands is called, never before."""
