"""Official files of tiny tasks with pictures, their regions, and a VisualBERT run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny import WORDS
from tests.tiny.lm import make_tokenizer
from tests.tiny.visual import BACKBONE, REGION, model_of
from vgtools.images.regions import RegionSet, backbone_of, open_regions, write_regions
from vgtools.models.encoder import as_encoder
from vgtools.models.runs import save_run
from vgtools.systems.visualbert.model import to_transformers


def save_pictures(
    path: Path,
    pictures: Mapping[str, list[int]],
    width: int = REGION,
    labels: Mapping[str, list[str]] | None = None,
    **facts: Any,
) -> Path:
    """Write regions of pictures, one for each number, which its feature and its box say."""

    def items() -> Iterable[tuple[str, RegionSet]]:
        for name, numbers in pictures.items():
            features = np.zeros((len(numbers), width), np.float32)
            features[np.arange(len(numbers)), numbers] = 3.0
            corners = 10.0 * np.array(numbers)[:, None] + np.array([0.0, 0.0, 10.0, 10.0])
            confidence = np.linspace(0.9, 0.1, len(numbers)).astype(np.float32)
            yield name, RegionSet(features, corners, confidence, (labels or {}).get(name), 100, 100)

    write_regions(
        path, items(), {"pictures": dict(pictures)}, width, **{"backbone": BACKBONE, **facts}
    )
    return path


def save_visualbert(folder: Path, regions: Path, spread: float = 0.05, **changes: Any) -> Path:
    """Write a run as `vg pretrain visualbert` leaves it."""
    model = model_of(initializer_range=spread, **changes)
    encoder = as_encoder(to_transformers(model), make_tokenizer(), "tiny")
    folder.mkdir()
    save_run(
        folder,
        "visualbert",
        {},
        {"config": {}, "backbone": backbone_of(open_regions(regions))},
        encoder,
    )
    return folder


def save_vqa(folder: Path, count: int = 12) -> dict[str, list[int]]:
    """Write questions and annotations of train and val.

    `bam` asks what the picture shows, to `dun` dogs are the answer.

    Returns:
        The pictures.
    """
    folder.mkdir(exist_ok=True)
    names, pictures = ("red", "two dogs", "blue"), dict[str, list[int]]()
    for number, split in enumerate(("train2014", "val2014")):
        questions, annotations = [], []
        for i in range(count):
            seen = i % 3
            image = 100 * number + i + 1
            pictures[f"{split}/COCO_{split}_{image:012}.jpg"] = [seen, 3]
            asked = i // 3 % 2
            own = {"question_id": 1000 * number + i, "image_id": image}
            questions.append(own | {"question": ("bam", "dun")[asked]})
            said = [names[1 if asked else seen]] * 9 + ["a Red"]
            annotations.append(
                own | {"answers": [{"answer": a, "answer_id": k + 1} for k, a in enumerate(said)]}
            )
        for name, key, rows in (
            ("OpenEnded_mscoco", "questions", questions),
            ("mscoco", "annotations", annotations),
        ):
            (folder / f"v2_{name}_{split}_{key}.json").write_text(
                json.dumps({"info": {"version": "2.0"}, key: rows})
            )
    return pictures


def save_grounding(folder: Path, count: int = 12) -> dict[str, list[int]]:
    """Write train.jsonl and val.jsonl: the phrase `the WORD` of a caption is the region that this
    word always is.

    Returns:
        The pictures.
    """
    folder.mkdir(exist_ok=True)
    pictures = dict[str, list[int]]()
    for number, split in enumerate(("train", "val")):
        rows = []
        for i in range(count):
            rng = np.random.default_rng([number, i])
            seen = rng.permutation(REGION).tolist()[:4]
            pictures[f"{split}{i}.jpg"] = seen
            text, phrases = "", []
            for k in seen[:2]:
                start = len(text)
                text += f"{WORDS[0]} {WORDS[1 + k]} "
                # Annotated in a picture half as large as that of the regions.
                boxes = [[5.0 * k, 0.0 + 5 * k, 5.0 * k + 5, 5.0 * k + 5]]
                phrases.append(
                    {
                        "start": start,
                        "end": len(text) - 1,
                        "type": "other",
                        "id": "1",
                        "boxes": boxes,
                    }
                )
            phrases.append({"start": 0, "end": 3, "type": "scene", "id": "2", "boxes": []})
            rows.append(
                {
                    "image": f"{split}{i}.jpg",
                    "text": text,
                    "width": 50,
                    "height": 50,
                    "phrases": phrases,
                }
            )
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return pictures


def save_nlvr2(folder: Path, count: int = 12) -> dict[str, list[int]]:
    """Write train.json and dev.json.

    A sentence is true where the left picture shows 1, false where the right one does.

    Returns:
        The pictures.
    """
    folder.mkdir(exist_ok=True)
    pictures = dict[str, list[int]]()
    for split in ("train", "dev"):
        rows = []
        for i in range(count):
            true = i // 2 % 2 == 0
            pair = f"{split}-{i // 4}-{i % 4}"
            pictures |= {
                f"{split}/{pair}-img0.png": [1, 0] if true else [2, 0],
                f"{split}/{pair}-img1.png": [2] if true else [1],
            }
            rows.append(
                {
                    "identifier": f"{pair}-0",
                    "sentence": "bam dun",
                    "label": str(true),
                    "writer": "7",
                }
            )
        (folder / f"{split}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return pictures


OBJECTS = ["person", "person", "dog"]


def vcr_row(name: str, **changes: Any) -> dict[str, Any]:
    """Return a row of VCR with all its official keys: the second of three objects is meant."""
    row = {
        "movie": "3015_TINY", "objects": OBJECTS, "interesting_scores": [0],
        "answer_likelihood": "possible",
        "img_fn": f"lsmdc_3015_TINY/{name}@0.jpg", "metadata_fn": f"lsmdc_3015_TINY/{name}@0.json",
        "answer_orig": "dun", "question_orig": "bam 2?", "rationale_orig": "dun 1",
        "question": ["bam", [1], "?"], "answer_match_iter": [3, 0, 2, 1], "answer_sources": [3287,
        0, 10184, 2260],
        "answer_choices": [["dun", word] for word in WORDS[1:5]], "answer_label": 0,
        "rationale_choices": [["kin", [0], word] for word in WORDS[1:5]],
        "rationale_sources": [1921, 0, 9750, 25743], "rationale_match_iter": [3, 0, 2, 1],
        "rationale_label": 0,
        "img_id": name, "question_number": 0, "annot_id": name, "match_fold": "train-0",
        "match_index": 0,
    }  # fmt: skip
    return row | changes


def save_vcr(folder: Path, count: int = 8) -> dict[str, list[int]]:
    """Write train.jsonl, val.jsonl and test.jsonl.

    Whether the whole picture shows 0 or 1 decides what is right.

    Returns:
        The pictures; the last region of each is the whole one.
    """
    folder.mkdir(exist_ok=True)
    pictures = dict[str, list[int]]()
    for split in ("train", "val", "test"):
        rows = []
        for i in range(count):
            asked, turned, name = i % 2, i // 2 % 2, f"{split}-{i}"
            words = [WORDS[1 + (k + i // 4) % 4] for k in range(4)]
            right = words.index(WORDS[1 + turned])
            row = vcr_row(
                name, question=["bam", [asked], "?"], answer_label=right,
                rationale_label=(right + 1) % 4,
                answer_choices=[["dun", word] for word in words],
                rationale_choices=[["kin", [1 - asked], words[k - 1]] for k in range(4)],
            )  # fmt: skip
            pictures[row["img_fn"]] = [2, 3, 4, turned]
            rows.append(
                {
                    k: v
                    for k, v in row.items()
                    if split != "test" or k not in ("answer_label", "rationale_label")
                }
            )
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return pictures
