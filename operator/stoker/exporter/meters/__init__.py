"""Frames and allocations → integrals, accounts and receipts. Pure: time is an argument, nothing here reads a clock.

Time is counted in integer nanoseconds of CLOCK_BOOTTIME and energy in integer microjoules: whatever comes, the accounts
of a GPU sum to its time and its energy exactly, for what is divided is never more than what was there.

    idle.py      what a GPU was doing: active, idle (of which class), not known
    hardware.py  a device's gauges, its counters made monotone, integrals of ratios
    energy.py    energy used since the reading before: by counter, else by power
    device_usage.py what one pod has had of one device; its receipt
    account.py   one GPU's time and energy: attributed, unallocated, unobserved
    node.py      all of them: what the poll loop calls
    ledger.py    the state as JSON and back; ledger_file.py: its file
    snapshot.py  what comes out
"""
