"""Streams, files and errors: the one layer through which every byte enters or leaves.

A command reads streams of any kind with `streams.read_lines` and `streams.read_jsonl`, a file or a
folder of shards that vg wrote with `artifact.Artifact`; it writes with `output.Output`, which
survives a kill, or `own.atomic_write`. Names are asked about in `names`, and `written` compares
files with their hashes. Errors of a user are `errors.DataError`; `vgtools.cli` prints them and
chooses the exit code. Each thing is imported from the module that defines it.
"""
