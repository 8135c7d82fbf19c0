"""Explaining: why a job is where it is, with numbers, and what would start it.

Pure: reads the scheduler's state, tries changes in a what-if that is rolled back. `explain` answers `stoker why`,
`reasons` gives the first reason to the operator, which writes it into the status of waiting jobs.
"""
