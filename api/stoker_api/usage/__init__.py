"""What jobs have had of GPUs: exporters' receipts kept, summed by hour, shown by job, user, queue and more.

amounts.py   the numbers of a receipt, as a sum
db.py        the SQLite file: schema, statements
taking.py    receipts → rows: what is new, what is refused, which hours it falls in
store.py     the file's threads; what the routes call
board.py     the living jobs' receipts in memory: status.usage, idle_since
settle.py    whether a job's receipts are all there
history.py   sums over hours and jobs
prices.py    money
hints.py     what to ask for instead
"""
