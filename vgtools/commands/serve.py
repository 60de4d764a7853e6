"""`vg serve`: ask a matcher and its bank on a page, or over HTTP."""

from __future__ import annotations

from typing import Annotated

from vgtools.commands.options import File, NProbe, Runtime, Value
from vgtools.commands.signature import flags
from vgtools.io.errors import amount
from vgtools.io.process import note
from vgtools.serving.start import Address


@flags
def serve(
    index: Annotated[list[str], File()],
    address: Address,
    runtime: Runtime,
    images: Annotated[str | None, File()] = None,
    feats: Annotated[str | None, File()] = None,
    backbone: Annotated[str | None, Value("REF")] = None,
    matcher: Annotated[str | None, Value("RUN")] = None,
    regions: Annotated[str | None, Value("X.npy")] = None,
    encoder: Annotated[str | None, Value("REF")] = None,
    captions: Annotated[str | None, File()] = None,
    nprobe: NProbe = None,
) -> None:
    """Serve a page and an API that show the answers of a bank: http://127.0.0.1:8765/.

    Page: vokens appear under the words of a text as it is typed; a click on a word shows its images
    with their scores, a slider weights the sentence, and every text has its images. With --backbone
    a picture that is dropped finds its neighbours and words; with --feats the page shows where in a
    picture a text is; with --regions and --encoder, which regions of a picture each attention head
    of a VisualBERT looks at for a word. Its address holds the text. It loads nothing from
    elsewhere. The address is printed on stdout once requests are answered.

    API: POST /api/vokenize, /api/retrieve, /api/locate and /api/attention answer rows with the rows
    that the commands write, byte for byte: a row of JSON with a row, a list with a list, lines
    (Content-Type: text/plain or application/x-ndjson) with lines, sent as they are computed.
    Settings such as k are in the query. /api/neighbours takes a picture, /api/index gives facts,
    /api/images/ROW a picture, /api/regions finds pictures with regions, /docs and /openapi.json
    describe it all. An error is {"error": why}, in the words of the commands. Requests that wait
    together share batches.

    Only this machine is answered, and only the server's own pages: other names (Host) and pages
    (Origin) are refused. With another --host every client needs the token: open
    http://HOST:PORT/?token=TOKEN once, or send "Authorization: Bearer TOKEN"; nothing is encrypted,
    so put a proxy with TLS before it. Pictures are served by row, not by path. A request holds at
    most 4 MiB of texts in 65,536 rows of 65,536 characters, or a picture of 16 MiB. Ctrl-C and
    SIGTERM end the server after the requests that are running. It needs vgtools[serve].

    Examples:

        vg serve --index vg.faiss --images images.jsonl

        vg serve --index builtin:emoji

        vg serve --index vg.faiss --images photos/ --backbone builtin:efficientnet-lite0

        vg serve --index vg.faiss --images photos/ --regions regions.npy --encoder visualbert

        curl --json '{"text": "a dog"}' '127.0.0.1:8765/api/vokenize?k=4'

        openssl rand -hex 16 > token; vg serve --index vg.faiss --host 0.0.0.0 --token token

    Args:
        index: The image bank: index of vg build-index; repeatable with a matcher's, rows in order.
        images: Where images of the index and of --regions are: image jsonl or a directory;
            builtin:emoji has its own.
        feats: Grid of the pictures, to locate texts in: X.npy of extract-image-feats --pooling
            none.
        backbone: The bank's backbone, to find neighbours of a new picture; builtin:emoji has it.
        matcher: The matcher's run, if not at the index's path to it.
        regions: Region features of pictures, to show where the heads of --encoder look.
        encoder: A VisualBERT, as vg probe-attention takes it.
        captions: Captions of these pictures to choose from; any text can be typed.
    """
    from vgtools.serving.start import start

    def ready(url: str, count: int) -> None:
        print(url, flush=True)
        note("serve", f"{amount(count, 'image')}; Ctrl-C stops it")

    start(
        address,
        ready,
        images,
        index=index,
        matcher=matcher,
        feats=feats,
        backbone=backbone,
        regions=regions,
        encoder=encoder,
        captions=captions,
        nprobe=nprobe,
        device=runtime.device,
    )
