"""Streams, files and errors: the one layer through which every byte enters or leaves.

A command reads with `streams.read_lines`, `streams.read_jsonl`, `files.open_npy` and
`files.open_features`; it writes with `output.Output`, which survives a kill, or
`own.atomic_write`. What a user can cause is raised as `errors.DataError`; `vgtools.cli` prints it
and chooses the exit code. Each thing is imported from the module that defines it.
"""
