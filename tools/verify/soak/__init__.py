"""A compressed day of jobs, visitors and faults on a running Stoker; what of it grows, and whether every promise held.

`day` says what is submitted when and how each job must end, `people` are the clients, `place` is what they use and how
it is broken (`one_machine`, `cluster`), `meter` measures and fits slopes. Owns no verdict: `__main__` judges.
"""
