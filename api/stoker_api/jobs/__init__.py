"""What the api does with jobs, apart from HTTP: submit, change, list, render, and their live progress."""
