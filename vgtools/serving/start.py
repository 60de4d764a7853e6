"""Open a bank with its models, and serve it at an address."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vgtools.io.errors import DataError, Exit, file_errors
from vgtools.io.remote import local
from vgtools.io.settings import count, file, value

if TYPE_CHECKING:
    from vgtools.reports.vokens import BankPictures
    from vgtools.serving.answers import Opened
    from vgtools.serving.gallery import Gallery

_TOKEN = 16  # characters that a token has at least


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where the server listens, and who may ask.

    Attributes:
        host: Address to listen on; any but this machine's own needs --token.
        port: Port to listen on; 0 chooses a free port.
        token: File with a secret of 16 characters or more, which every client has to know.
        requests: Requests at a time; more are refused.
        timeout: Seconds that one request may take.
    """

    host: str = value("127.0.0.1")
    port: int = value(8765, min=0, max=65535)
    token: str | None = file(None)
    requests: int = count(64)
    timeout: int = count(300)


def start(
    address: Address,
    ready: Callable[[str, int], None],
    images: str | None,
    *,
    index: Sequence[str],
    matcher: str | None = None,
    captions: str | None = None,
    **models: Any,
) -> None:
    """Serve a bank until SIGTERM or SIGINT.

    Args:
        ready: called with the address of the page and the size of the bank when requests are
            answered.
        images: where the images are, for `page.locate`; those that come with a bank are known.
        index: the bank.
        matcher: as the fields of `ServedModels`.
        captions: texts to choose from for the pictures with region features.
        **models: its other fields.

    Raises:
        DataError: uvicorn or starlette is missing (69), the address cannot be used (2, 69), or a
            file cannot.
    """
    try:
        from vgtools.serving import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "h11"):
            raise
        why = f"vg serve needs {error.name}: pip install 'vgtools[serve]'"
        raise DataError(why, code=Exit.UNAVAILABLE) from None
    token = None if address.token is None else _secret(address.token)
    with run.bind(address.host, address.port) as bound:
        at_home = run.is_local(bound)
        if not at_home and token is None:
            why = f"{address.host} is reached from other machines"
            why += "; --token FILE with a secret is needed"
            raise DataError(why, "--host", code=Exit.USAGE)
        from vgtools.reports.page import credit, own_images
        from vgtools.serving.answers import ServedModels, open_answers
        from vgtools.serving.app import Service

        named = ServedModels([*map(local, index)], matcher and local(matcher), **models)
        if captions is not None and named.regions is None:
            raise DataError("--captions: give --regions as well", code=Exit.USAGE)
        opened = open_answers(named)
        sources = [*filter(None, (own_images(opened.manifest), images))]
        bank, seen = _galleries(opened, sources, captions)
        name = ", ".join(map(os.path.basename, index))
        credits = " ".join(filter(None, map(credit, sources)))
        service = Service(opened, bank, seen, name, credits, token)
        names = frozenset({"127.0.0.1", "localhost", "[::1]", address.host.lower()})
        guard = {
            "hosts": names if at_home else None,
            "most": address.requests,
            "seconds": address.timeout,
        }
        run.serve(service.app(guard), bound, lambda: ready(run.url_of(bound), len(opened.ids)))


def _galleries(
    opened: Opened, sources: Sequence[str], captions: str | None
) -> tuple[Gallery, Gallery | None]:
    """Return the images of a bank, and those with region features.

    Args:
        sources: where their files are; a later source overrides earlier sources.
        captions: file of texts about the latter.

    Raises:
        DataError: none of the images is there.
    """
    import numpy as np

    from vgtools.reports.page import ImageFile, locate
    from vgtools.reports.vokens import BankPictures, ShownBank
    from vgtools.serving.gallery import Gallery, read_captions

    regions = opened.regions
    ids = [*opened.ids]
    asked = {*ids, *(regions.images if regions else ())}
    files = dict[str, ImageFile]()
    for source in sources:
        found = locate(source, asked)
        if not found:
            why = f"has none of the {len(asked)} images of the index, such as {ids[0]!r:.80}"
            way_out = "name the images that it was made from"
            raise DataError(f"{why}; {way_out}", source, code=Exit.NO_INPUT)
        files |= found

    def pictures(images: list[str], manifest: Mapping[str, Any]) -> BankPictures | None:
        known = not files.keys().isdisjoint(images)
        return BankPictures(ShownBank(images, manifest), files) if known else None

    bank = Gallery(ids, pictures(ids, opened.manifest))
    if regions is None:
        return bank, None
    shown = pictures(regions.images, regions.manifest)
    rows = np.flatnonzero(regions.counts).tolist()
    texts = read_captions(captions, regions.images) if captions else None
    return bank, Gallery(regions.images, shown, rows, texts)


def _secret(path: str) -> str:
    """Return the token in a file.

    Raises:
        DataError: it cannot be read (66), or is short or not one line of plain characters (65).
    """
    with file_errors(path, reading=True), open(path, "rb") as stream:
        token = stream.read(1 << 12).decode("ascii", "replace").strip()
    if len(token) < _TOKEN or not token.isascii() or not token.replace("-", "").isalnum():
        why = f"expected one line of {_TOKEN} letters, digits and dashes or more"
        raise DataError(f"{why}; openssl rand -hex 16 makes one", path)
    return token
