"""Captions to validate on: which photos are held out, by name."""

from __future__ import annotations

from vgtools.training.splits import CaptionSplits, hold_out

IDS = [f"photo{number:02}.jpg" for number in range(20)]
HELD = {"photo04.jpg", "photo09.jpg", "photo10.jpg"}  # by `sha256sum` of the names, the least


def held(ids: list[str], named: list[str]) -> set[str]:
    splits = CaptionSplits([(ids.index(name), f"a caption of {name}") for name in named])
    parts = hold_out(splits, 3, "captions.jsonl", ids)
    assert len(parts.train) + len(parts.valid) == len(named)
    for rows in (parts.train, parts.valid):
        assert all(text == f"a caption of {ids[image]}" for image, text in rows)
    return {ids[image] for image, _ in parts.valid}


def test_photos_are_held_out_by_name_in_whatever_order_they_are() -> None:
    assert held(IDS, IDS * 2) == held(IDS[::-1], IDS) == held(IDS, IDS[::-1]) == HELD
