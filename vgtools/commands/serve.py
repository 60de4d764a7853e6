"""`vg serve`: ask a matcher and its bank on a page, or over HTTP."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from vgtools.commands.options import File, NProbe, Runtime, Value, note, refuse_if
from vgtools.commands.signature import flags
from vgtools.io.errors import DataError, Exit, amount, file_errors
from vgtools.io.remote import local
from vgtools.io.settings import count, file, value

if TYPE_CHECKING:
    from vgtools.reports.vokens import BankPictures
    from vgtools.serving.answers import Opened

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


@flags
def serve(
    index: Annotated[list[str], File()],
    address: Address,
    runtime: Runtime,
    images: Annotated[str | None, File()] = None,
    feats: Annotated[str | None, File()] = None,
    backbone: Annotated[str | None, Value("REF")] = None,
    matcher: Annotated[str | None, Value("RUN")] = None,
    nprobe: NProbe = None,
) -> None:
    """Serve a page and an API that show the answers of a bank: http://127.0.0.1:8765/.

    Page: vokens appear under the words of a text as it is typed; a click on a word shows its images
    with their scores, the weight of the sentence is a slider, and every text has its images. With
    --backbone a picture that is dropped finds its neighbours and words; with --feats the page shows
    where in a picture a text is. Its address holds the text, so that it can be sent. It loads
    nothing from elsewhere. The address is printed on stdout once requests are answered.

    API: POST /api/vokenize, /api/retrieve and /api/locate answer rows with the rows that the
    commands write, byte for byte: a row of JSON with a row, a list with a list, lines
    (Content-Type: text/plain or application/x-ndjson) with lines, sent as they are computed.
    Settings such as k are in the query. /api/neighbours takes a picture, /api/index gives facts,
    /api/images/ROW a picture, /docs and /openapi.json describe it all. An error is {"error": why},
    in the words of the commands. Requests that wait together share batches.

    Only this machine is answered, and only pages of the server itself: other names (Host) and other
    pages (Origin) are refused. With another --host every client needs the token: open
    http://HOST:PORT/?token=TOKEN once, or send "Authorization: Bearer TOKEN"; nothing is encrypted,
    so put a proxy with TLS before it. Pictures are served by their row, never by a path. A request
    holds at most 4 MiB of texts, or a picture of 16 MiB. Ctrl-C and SIGTERM end the server after
    the requests that are running. It needs vgtools[serve].

    Examples:

        vg serve --index vg.faiss --images images.jsonl

        vg serve --index vg.faiss --images photos/ --backbone builtin:efficientnet-lite0

        curl --json '{"text": "a dog"}' '127.0.0.1:8765/api/vokenize?k=4'

        openssl rand -hex 16 > token; vg serve --index vg.faiss --host 0.0.0.0 --token token

    Args:
        index: The image bank: index of vg build-index; repeatable with a matcher's, rows in order.
        images: Where the images are: image jsonl or a directory.
        feats: Grid of the pictures, to locate texts in: X.npy of extract-image-feats --pooling
            none.
        backbone: The bank's backbone, to find the neighbours of a new picture.
        matcher: The matcher's run, if not at the index's path to it.
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
        why = f"{address.host} is reached from other machines; --token FILE with a secret is needed"
        refuse_if(not at_home and token is None, "--host", why)
        from vgtools.reports.page import credit
        from vgtools.serving.answers import ServedModels, open_answers
        from vgtools.serving.app import Service

        opened = open_answers(
            ServedModels(
                [*map(local, index)],
                matcher and local(matcher),
                feats,
                backbone,
                nprobe,
                runtime.device,
                runtime.offline,
            )
        )
        pictures = None if images is None else _pictures(opened, images)
        name = ", ".join(map(os.path.basename, index))
        service = Service(opened, pictures, name, credit(images) if images else "", token)
        names = frozenset({"127.0.0.1", "localhost", "[::1]", address.host.lower()})
        app = service.app(
            {
                "hosts": names if at_home else None,
                "most": address.requests,
                "seconds": address.timeout,
            }
        )

        def ready() -> None:
            print(run.url_of(bound), flush=True)
            note("serve", f"{amount(len(opened.ids), 'image')}; Ctrl-C stops it", runtime.quiet)

        run.serve(app, bound, ready)


def _pictures(opened: Opened, images: str) -> BankPictures:
    """Return the pictures of a bank.

    Raises:
        DataError: none of them is there.
    """
    from vgtools.reports.page import locate
    from vgtools.reports.vokens import BankPictures, ShownBank

    found = BankPictures(ShownBank([*opened.ids], opened.manifest), locate(images, opened.ids))
    if not found.files:
        why = (
            f"has none of the {len(opened.ids)} images of the index, such as {opened.ids[0]!r:.80}"
        )
        way_out = "name the images that it was made from"
        raise DataError(f"{why}; {way_out}", images, code=Exit.NO_INPUT)
    return found


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
