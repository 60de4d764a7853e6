"""Pictures with regions: found by their words, and served by their row."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.serving.client import Server
from tests.serving.conftest import EVIL
from tests.tiny.probe import save_rows
from vgtools.io.errors import DataError
from vgtools.serving.gallery import PAGE, Gallery, read_captions


def test_pictures_are_found_by_their_ids_names_and_captions(server: Server) -> None:
    found = json.loads(server.ask("/api/regions").body)
    assert found["count"] == 6
    assert found["images"][1]["image"] == "image001"
    for text, rows in (
        ("IMAGE003", [3]),
        ("bam 4", [4]),  # in a caption
        (EVIL, [0, 1, 2, 3, 4, 5]),  # in the names of the bank
        ("image bam xyz", []),
    ):
        images = json.loads(server.ask("/api/regions?find=" + quote(text)).body)["images"]
        assert [one["row"] for one in images] == rows, text
    last = json.loads(server.ask("/api/regions?first=5").body)
    assert (last["count"], [one["row"] for one in last["images"]]) == (6, [5])
    (named,) = json.loads(server.ask("/api/regions?row=2").body)
    assert named["captions"] == ["bam dis 2", f"{EVIL} fan"]
    picture = server.ask("/api/regions/2?side=640")
    assert (picture.status, picture.headers["content-type"]) == (200, "image/webp")


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("/api/regions?first=-1", 400, '"first" must be an integer from 0 to'),
        ("/api/regions?find=" + "a" * 201, 400, '"find" may have 200 characters, got 201'),
        ("/api/regions?row=6", 404, '"row" must be an integer from 0 to 5'),
        ("/api/regions/6", 404, '"row" must be an integer from 0 to 5'),
        ("/api/regions/..%2f..%2fsecret.txt", 404, "Not Found"),
        ("/api/regions/1?side=3", 400, '"side" must be one of (160, 640)'),
    ],
)
def test_other_pictures_are_refused(server: Server, path: str, status: int, why: str) -> None:
    found = server.ask(path)
    assert found.status == status
    assert why in found.error


def test_images_come_in_pages_in_their_order() -> None:
    gallery = Gallery([f"a{n}" for n in range(100)], None, range(0, 100, 2))
    first = gallery.find("a", 0)
    assert first["count"] == 50
    assert [one["row"] for one in first["images"]] == [*range(0, 2 * PAGE, 2)]
    assert [one["row"] for one in gallery.find("a", 48)["images"]] == [96, 98]
    assert gallery.find("A9", 1)["images"][0] == {"row": 92, "image": "a92", "name": ""}


def test_captions_of_other_images_are_left_out(tmp_path: Path) -> None:
    rows = [{"image": image, "text": text} for image, text in (("a", "1"), ("b", "2"), ("a", "3"))]
    file = save_rows(tmp_path / "c.jsonl", rows)
    assert read_captions(str(file), ["a", "c"]) == {"a": ["1", "3"]}
    with pytest.raises(DataError, match="has no caption of an image with regions"):
        read_captions(str(file), ["c"])
