"""Thousands of jobs, visitors and faults on a running Stoker: what of it grows, and whether every promise held.

`plan` says what is submitted and how each job must end, `clients` submit it and disturb, `one_machine` and `cluster`
are what they use and how it is broken, `meter` measures and fits slopes. `__main__` judges.
"""
