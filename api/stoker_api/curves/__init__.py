"""What jobs report of their training, kept as curves: each metric's values over steps, thinned, for every attempt."""
