"""Pictures of phrases, found by their names."""

from __future__ import annotations

import pytest

from vgtools.images.phrases import image_finder


def test_a_photo_of_flickr_has_two_names() -> None:
    ids = ["36979_ac13e0fb17.jpg", "f/1000268201_693b08cb0e.jpg", "7.jpg"]
    find = image_finder({name: row for row, name in enumerate(ids)})
    names = [*ids, "36979.jpg", "1000268201", "8.jpg"]
    assert [find(name) for name in names] == [0, 1, 2, 0, 1, None]


@pytest.mark.parametrize(
    "name", ["train/7_left.png", "7_1.jpg", "000000000007_2.jpg", "7_0123456789ab.jpg"]
)
def test_a_picture_of_another_name_is_not_taken(name: str) -> None:
    assert image_finder({name: 0})("val/7.png") is None


def test_one_number_of_two_photos_is_ambiguous() -> None:
    assert image_finder({"7_0123456789.jpg": 0, "b/7_0123456789.jpg": 1})("7.jpg") is None
