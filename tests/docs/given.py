"""Files that a reader has before the first line of a tutorial, at toy size."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw

from tests.examples.make import ROOT, Places, variables
from tests.examples.table import Row
from tests.tiny import dual

COLOURS = ("red", "green", "blue", "yellow", "black")
SHAPES = ("circle", "square", "triangle", "bar")
GROUNDS = {"grass": "lightgreen", "sand": "wheat"}


def draw(path: Path, ground: str, colour: str, shape: str) -> None:
    picture = Image.new("RGB", (96, 96), ground)
    pen = ImageDraw.Draw(picture)
    if shape == "triangle":
        pen.polygon([(48, 16), (80, 80), (16, 80)], fill=colour)
    elif shape == "circle":
        pen.ellipse((16, 16, 80, 80), fill=colour)
    else:
        pen.rectangle((16, 16, 80, 80) if shape == "square" else (8, 40, 88, 56), fill=colour)
    picture.save(path)


def photos(folder: Path, name: str = "photos", table: str = "captions.csv") -> None:
    """Draw 40 pictures of a shape on a ground, and write the table of their captions."""
    (folder / name).mkdir()
    rows = [("image", "text")]
    for place, ground in GROUNDS.items():
        for colour in COLOURS:
            for shape in SHAPES:
                image = f"{place}-{colour}-{shape}.png"
                draw(folder / name / image, ground, colour, shape)
                rows.append((image, f"a {colour} {shape} on the {place}"))
    with (folder / table).open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def text(folder: Path, name: str = "text.txt") -> None:
    lines = (f"She saw a {colour} {shape}." for colour in COLOURS for shape in SHAPES)
    (folder / name).write_text("\n".join(lines) + "\n")


def own_photos(folder: Path) -> None:
    photos(folder)
    photos(folder, "held", "held.csv")
    text(folder)


def clip(folder: Path) -> None:
    photos(folder)
    text(folder)
    dual.save_dual(folder / "openai/clip-vit-base-patch32")


def paper(folder: Path) -> None:
    places = Places(folder)
    shutil.copytree(ROOT / "examples/visualbert", folder / "examples/visualbert")
    for name in ("flickr8k", "entities"):
        places[name]  # which writes it


def cluster(folder: Path) -> None:
    text(folder, "corpus.txt")


def extend(folder: Path) -> None:
    photos(folder)
    shutil.copytree(ROOT / "vgtools", folder / "vgtools", ignore=shutil.ignore_patterns("*.pyc"))


def nothing(folder: Path) -> None:
    """The tutorial starts with an install."""


GIVEN: dict[str, Callable[[Path], None]] = {
    "index": nothing,
    "tutorials/own-photos": own_photos,
    "tutorials/clip": clip,
    "tutorials/paper": paper,
    "tutorials/cluster": cluster,
    "tutorials/notebook": nothing,
    "tutorials/extend": extend,
}


def settings(page: str, folder: Path) -> dict[str, str]:
    """Return variables of the environment that make a tutorial's Makefile small."""
    if page != "tutorials/paper":
        return {}
    row = Row("visualbert", "", "probe", "")
    pairs = (word.split("=", 1) for word in variables(row, Places(folder / "networks")))
    return {name: value for name, value in pairs if name not in ("DATA", "ENTITIES")}
