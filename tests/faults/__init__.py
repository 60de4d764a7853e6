"""The fault harness: every writing command under kills, full disks, bad and hostile inputs, races.

`python -m tests.faults` (or `make faults`) runs all of it and prints a table. A new command
joins by one row of `cases.CASES`.
"""
