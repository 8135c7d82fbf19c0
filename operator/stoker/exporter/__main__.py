"""`python -m stoker.exporter`."""

from .main import main

main()
