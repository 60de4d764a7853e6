"""Failures that are known and not mended yet: a table that only shrinks.

`make test` runs the trial of each row, and fails where it does not fail any more: whoever mends a
fault removes its row.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

from tests.faults.trials import Outcome


@dataclass(frozen=True)
class Known:
    """A fault of the product that trials meet.

    Args:
        row: its name in the list of faults, and what has to be mended.
        verdict: that it shows as, a regular expression.
        trials: shell pattern of the ids that meet it.
        detail: regular expression that what they see contains.
        shown: an id that shows it.
    """

    row: str
    verdict: str
    trials: str
    detail: str
    shown: str


_NAN = r"no longer a number|features are NaN|is not a number|puts no token before a pair"
_RUN = r"of run/(metrics|best|encoder|seed-\d+|checkpoint|[\w]+\.safetensors)"

KNOWN = (
    Known(
        "A1 weights of a backbone that do not fit",
        "different", "inputs extract* net/model.safetensors *", "weights that do not fit",
        "inputs extract net/model.safetensors weights_lost.19",
    ),
    Known(
        "A2 a finished run is not checked against what it was",
        "different", "damage *", _RUN, "damage finetune done 64 any.0",
    ),
    Known(
        "A2 a damaged encoder of a run is used",
        "different", "inputs * */encoder/*", "exit 0, but",
        "inputs pretrain-further lm/encoder/model.safetensors flips.1",
    ),
    Known(
        "G1 a --shape that changed is not noticed",
        "different|stuck", "changes pretrain * shape.json *",
        "the old result is kept|exit 0, alone|holds the weights of another model",
        "changes pretrain done shape.json numbers.2",
    ),
    Known(
        "A5 what a pipe carries is taken for text",
        "different", "inputs * stdin", "exit 0, but",
        "inputs vokenize-npy text.txt.gz stdin",
    ),
    Known(
        "A6 a damaged checkpoint is believed",
        "internal", "damage *", r"\.safetensors|/complete",
        "damage finetune-vqa kill@23 64 any.11",
    ),
    Known(
        "B1 a batch without a box",
        "internal", "* extract-regions *", "non-empty list of Tensors",
        "changes extract-regions done boxes.jsonl lines.4",
    ),
    Known(
        "B2 a tokenizer that loads and cannot encode",
        "internal", "inputs * */tokenizer.json *", "WordPiece|Exception",
        "inputs revokenize encoder/tokenizer.json json_move.3",
    ),
    Known(
        "B4 a lone surrogate in SQuAD",
        "internal", "inputs finetune-squad squad-2.0/*", "TextEncodeInput",
        "inputs finetune-squad squad-2.0/train-v2.0.json json_text.11",
    ),
    Known(
        "B5 a shape that transformers refuses",
        "internal", "* pretrain *shape.json *", "VG_TRACEBACK",
        "inputs pretrain shape.json json_twice.5",
    ),
    Known(
        "B7 damaged metrics of a run",
        "internal", "damage *", "JSONDecodeError", "damage pretrain done 88 cut_out.0",
    ),
    Known(
        "B8 a forged manifest or run.json",
        "internal", "inputs *+.*", "", "inputs build-index feats.npy npy_header+.30",
    ),
    Known(
        "B8 the manifest of a hostile maker",
        "internal", "inputs show-page vg.json *", "KeyError",
        "inputs show-page vg.json json_move.3",
    ),
    Known(
        "B8 the config of a hostile backbone",
        "internal", "* extract* net/config.json *", "VG_TRACEBACK",
        "inputs extract net/config.json json_value.15",
    ),
    Known(
        "B8 warnings of libraries before the message",
        "message", "inputs *", "Warning:", "inputs vokenize vg.faiss insert+.6",
    ),
    Known(
        "B10 features of others of another shape",
        "internal", "inputs prepare-arrays sets/others.npy *", "IndexError",
        "inputs prepare-arrays sets/others.npy npy_other.12",
    ),
    Known(
        "B11 weights of a backbone that are a folder or a link to nothing",
        "internal", "inputs extract* net/model.safetensors *", "IndexError",
        "inputs extract net/model.safetensors folder",
    ),
    Known(
        "C1 a FIFO is read twice",
        "hang", "inputs * fifo", "", "inputs extract-list list.txt fifo",
    ),
    Known(
        "F1 a damaged run.json beside -o has no way out",
        "stuck", "damage *",
        r"not valid JSON|an? .* was wanted|is not a manifest|is not empty and no run",
        "damage finetune-codah done 29 cut_out.10",
    ),
    Known(
        "F3 an encoder, backbone or features that cannot be used are not named",
        "message", "inputs *", _NAN,
        "inputs pretrain-further lm/encoder/model.safetensors weights_values.11",
    ),
    Known(
        "K2 compare --noise cannot repeat what was stopped",
        "exit|stuck", "* compare-noise *", "is there and no run of vg",
        "kills compare-noise kill@10",
    ),
    Known(
        "K4 compare --noise names its output where an input is bad",
        "exit|message", "inputs compare-noise *", "noisy: cannot be written",
        "inputs compare-noise lm/encoder/config.json folder",
    ),
    Known(
        "K5 compare leaves out a task without run.json and does not say so",
        "different", "inputs compare *run.json *", "exit 0, but",
        "inputs compare compare/mlm/rte/run.json missing",
    ),
)  # fmt: skip


def excused(outcome: Outcome) -> str:
    """Return the row that explains a failure, or an empty string."""
    for known in KNOWN:
        if (
            re.fullmatch(known.verdict, outcome.verdict)
            and fnmatch.fnmatchcase(outcome.trial, known.trials)
            and re.search(known.detail, outcome.detail)
        ):
            return known.row
    return ""
