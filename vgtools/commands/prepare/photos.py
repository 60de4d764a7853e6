"""The photos that rows are about, and how `vg prepare` writes rows and the list of their images."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from vgtools.commands.options import Errors, File, Target, refuse_if
from vgtools.io.settings import value

if TYPE_CHECKING:
    from vgtools.datasets.rows import Folder
    from vgtools.io.errors import Tally

ImagesOut = Annotated[str | None, File("Write the image list to FILE.", "--images-out")]


@dataclass(frozen=True, kw_only=True)
class PhotoFlags:
    """The photos that rows are about.

    Attributes:
        images: Folder of the photos; boxes are scaled to them.
    """

    images: str | None = value(None, metavar="DIR")
    images_out: ImagesOut = None

    def check(self, output: str, inputs: Sequence[str], urls: bool = False) -> None:
        """Refuse a place for the image list before any row is written.

        Rows go to the output; with URLs a list without photos is of use.

        Raises:
            typer.BadParameter: no photos to list, or the two outputs would share a manifest.
            DataError: one of them cannot be written there.
        """
        from vgtools.datasets.rows import errors_beside
        from vgtools.io.names import bare, is_stream, manifest_path
        from vgtools.io.output import check_place

        if not self.images_out:
            return
        no_photos = not self.images and not urls
        refuse_if(no_photos, "--images-out", "needs --images DIR, the folder of the photos")
        manifests = {manifest_path(os.path.realpath(path)) for path in (self.images_out, output)}
        why = f"must differ from -o {output} before the suffix"
        refuse_if(len(manifests) < 2, "--images-out", why)
        # While it grows, a file has further names, which start with its own: X.part, X.lock …
        one, other = sorted(map(os.path.realpath, (self.images_out, output)))
        why = f"is a name that vg may use while it writes -o {output}; choose another"
        refuse_if(other.startswith(f"{one}."), "--images-out", why)
        why = f"is where -o {output} lists its errors; choose another"
        refuse_if(bare(self.images_out) == errors_beside(output), "--images-out", why)
        for path in (self.images_out, output):  # the first is written before the second is opened
            if path and not is_stream(path):
                check_place(path, inputs)
        refuse_if(bare(self.images_out).endswith(".txt"), "--images-out", "expected X.jsonl")

    def open(self) -> Folder | None:
        """Return the folder of the photos; None without --images."""
        from vgtools.datasets.rows import Folder

        return Folder(self.images) if self.images else None


@dataclass(frozen=True, kw_only=True)
class RowOutputs(Errors, Target, PhotoFlags):
    """Where rows and the list of their images go; without --images rows are written as they are."""

    def write(
        self,
        rows: Iterable[dict[str, Any]],
        what: str,
        tally: Tally,
        inputs: Sequence[str],
        config: dict[str, Any],
        urls: bool = False,
    ) -> None:
        """Write the rows of `vg prepare`, then the list of their images.

        The rows are called `what`, in the plural; `config` holds the settings that decide them,
        besides the photos.
        """
        from vgtools.datasets.rows import Row, listing, save, with_photos
        from vgtools.io.errors import Tally
        from vgtools.io.inputs import Inputs

        self.check(self.output, inputs, urls)
        folder = self.open()
        images: dict[str, Row] = {}
        # Two outputs are made from one reading.
        read = Inputs(inputs) if self.images_out else inputs
        config = config | {"photos": folder.digest() if folder else None, "on_error": self.on_error}
        if folder and self.images_out:
            config["photos_at"] = os.path.abspath(folder.path)  # as the list of images has it
        if folder:
            rows = with_photos(rows, folder, tally)
        rows = listing(rows, images, folder)
        save(rows, self.output, tally, what, config, read, self.restart)
        if self.images_out:
            rest = Tally()
            rest.left_out[f"picture of {self.images} in no row"] = folder.unused() if folder else 0
            listed = images.values()
            save(listed, self.images_out, rest, "images", config, read, self.restart)
