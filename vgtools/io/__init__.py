"""Streams, files and errors: the one layer through which every byte enters or leaves.

A command reads with `read_lines`, `read_jsonl`, `open_npy` and `open_features`; it writes with
`vgtools.io.output.Output`, which survives a kill, or `atomic_write`. What a user can cause is
raised as `DataError`; `vgtools.cli` prints it and chooses the exit code.
"""

from vgtools.io.errors import DataError as DataError
from vgtools.io.errors import Exit as Exit
from vgtools.io.errors import amount as amount
from vgtools.io.errors import file_error as file_error
from vgtools.io.errors import name_of as name_of
from vgtools.io.errors import plain as plain
from vgtools.io.errors import storable as storable
from vgtools.io.files import FORMAT as FORMAT
from vgtools.io.files import Features as Features
from vgtools.io.files import check_format as check_format
from vgtools.io.files import check_made as check_made
from vgtools.io.files import compress as compress
from vgtools.io.files import config_difference as config_difference
from vgtools.io.files import dumps as dumps
from vgtools.io.files import final_path as final_path
from vgtools.io.files import manifest_beside as manifest_beside
from vgtools.io.files import manifest_path as manifest_path
from vgtools.io.files import open_arrays as open_arrays
from vgtools.io.files import open_features as open_features
from vgtools.io.files import open_npy as open_npy
from vgtools.io.files import page_path as page_path
from vgtools.io.files import plain_json as plain_json
from vgtools.io.files import read_ids as read_ids
from vgtools.io.files import read_json as read_json
from vgtools.io.files import read_made as read_made
from vgtools.io.files import read_manifest as read_manifest
from vgtools.io.files import sha256_file as sha256_file
from vgtools.io.files import versions as versions
from vgtools.io.files import write_manifest as write_manifest
from vgtools.io.inputs import Inputs as Inputs
from vgtools.io.own import atomic_write as atomic_write
from vgtools.io.own import is_stream as is_stream
from vgtools.io.own import open_stream as open_stream
from vgtools.io.own import sync_dir as sync_dir
from vgtools.io.own import write_page as write_page
from vgtools.io.process import Lock as Lock
from vgtools.io.process import Progress as Progress
from vgtools.io.process import Stop as Stop
from vgtools.io.process import when_free as when_free
from vgtools.io.streams import WINDOW_CHARS as WINDOW_CHARS
from vgtools.io.streams import Piece as Piece
from vgtools.io.streams import TextStats as TextStats
from vgtools.io.streams import Window as Window
from vgtools.io.streams import arrives_once as arrives_once
from vgtools.io.streams import holds_rows as holds_rows
from vgtools.io.streams import is_unnamed as is_unnamed
from vgtools.io.streams import open_read as open_read
from vgtools.io.streams import parse_json as parse_json
from vgtools.io.streams import read_jsonl as read_jsonl
from vgtools.io.streams import read_lines as read_lines
from vgtools.io.streams import read_quoted as read_quoted
from vgtools.io.streams import read_text_rows as read_text_rows
from vgtools.io.streams import read_texts as read_texts
from vgtools.io.streams import read_windows as read_windows
from vgtools.io.streams import refuse_stream as refuse_stream
from vgtools.io.streams import require as require
