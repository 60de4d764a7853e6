"""The application: its addresses, bodies in and out, and errors in the words of the commands."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from vgtools import __version__
from vgtools.io.errors import DataError, Exit, is_out_of_memory, plain
from vgtools.io.files import dumps
from vgtools.io.streams import Window, decode
from vgtools.reports.page import readable, render
from vgtools.reports.vokens import ShownBank
from vgtools.serving.answers import REQUEST, Answerer, Opened, Setting
from vgtools.serving.gallery import PAGE, SIDES, Gallery
from vgtools.serving.guard import COOKIE, Guard, failure, same
from vgtools.serving.worker import BATCH, QueuedJob, Rows, Worker

MOST_TEXT = 4 << 20  # bytes of texts in one request; files belong to the commands
MOST_CHARACTERS = 1 << 16  # per text: a few seconds, in which nobody else is answered
MOST_PICTURE = 16 << 20
MOST_ROWS = 1 << 16  # in one request: empty lines are short, but their answers are not
MOST_ANSWER = 1 << 28  # bytes of an answer that is sent at once
_LEAST = 64  # characters that a row counts as in a batch
_LARGE = 1 << 14  # bytes of a body that takes long to read
_READERS = 2  # threads that read them: a decoded picture can have 500 MB
_BODY_SECONDS = 30  # for the body of a request
_LINES = "application/x-ndjson"
_JSON = "application/json"
_MOST_NAMED = 1000  # rows whose names one request asks for
_MOST_SOUGHT = 200  # characters that pictures are sought by
# Why an answer is not served.
_LACKS = {
    "vokenize": "needs the index of a matcher of tokens",
    "retrieve": "needs an index of images",
    "locate": "needs vg serve --feats, a grid of features of the pictures",
    "neighbours": "needs vg serve --backbone, the network that the bank was made with",
    "attention": "needs vg serve --regions and --encoder, region features and a VisualBERT",
}
# By exit code; 400 for all that is wrong with a request itself.
_STATUS = {Exit.NO_INPUT: 404, Exit.CANNOT_CONTINUE: 503, Exit.UNAVAILABLE: 503}


class Service:
    """The answers of one bank over HTTP.

    Args:
        opened: the bank with its answers.
        bank: images of the bank.
        seen: images with region features, or None where there are none.
        name: the index's.
        credit: the pictures'.
        token: as the guard's.
    """

    def __init__(
        self,
        opened: Opened,
        bank: Gallery,
        seen: Gallery | None,
        name: str,
        credit: str,
        token: str | None,
    ) -> None:
        self._opened = opened
        self._bank = bank
        self._seen = seen
        self._token = token
        self._worker: Worker | None = None
        self._reading = asyncio.Semaphore(_READERS)
        self._index = self._facts(name)
        shown = ShownBank([], opened.manifest)
        self._page = render(
            "serve",
            name,
            self._index,
            shared=["rows", "heads"],
            credit=credit,
            facts=[(key, readable(value)) for key, value in shown.facts() if key != "Image bank"],
            index=self._index,
        )
        self._docs = render("docs", "API", None, paths=openapi(opened.answers)["paths"])

    def app(self, guard: Mapping[str, Any]) -> Starlette:
        """Return the application with its guard."""
        routes = [
            Route("/", self._show),
            Route("/docs", self._document),
            Route("/openapi.json", self._describe),
            Route("/api/index", self._tell),
            Route("/api/images/{row}", self._sender(self._bank)),
        ]
        if self._seen is not None:
            routes.append(Route("/api/regions", self._find))
            routes.append(Route("/api/regions/{row}", self._sender(self._seen)))
        for name in self._opened.answers:
            routes.append(Route(f"/api/{name}", self._endpoint(name), methods=["POST"]))
        for name in self._index["lacks"]:
            routes.append(Route(f"/api/{name}", self._refuse, methods=["POST"]))
        handlers: dict[Any, Any] = {
            DataError: _data_error,
            HTTPException: _http_error,
            Exception: _internal_error,
        }
        return Starlette(
            routes=routes,
            middleware=[Middleware(Guard, token=self._token, **guard)],
            exception_handlers=handlers,
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._worker = Worker()
        yield
        self._worker.stop()

    # ------------------------------------------------------------------------------------- answers

    def _endpoint(self, name: str) -> Any:
        """Return the function that answers one kind of question."""
        answer = self._opened.answers[name]

        async def respond(request: Request) -> Response:
            settings = _settings(answer, request)
            kind = request.headers.get("content-type", _JSON).partition(";")[0].strip().lower()
            picture = name == "neighbours"
            body = await _body(request, MOST_PICTURE if picture else MOST_TEXT)
            window, form = _window(body, "picture" if picture else kind)
            if picture or len(body) > _LARGE:  # long work must not keep other requests waiting
                async with self._reading:
                    items = await run_in_threadpool(answer.read, window)
            else:
                items = answer.read(window)
            if len(items) > MOST_ROWS:
                raise HTTPException(413, f"asks for over {MOST_ROWS:,} rows; send less at a time")
            if any(answer.size(item, settings) > MOST_TEXT for item in items):
                raise HTTPException(413, "a text is too long for this many images of each; lower k")
            if not picture and any(len(text) > MOST_CHARACTERS for text in window.texts()):
                why = f"a text has over {MOST_CHARACTERS:,} characters"
                raise HTTPException(413, f"{why}; send its sentences as rows, or use the command")
            if form == "lines":
                return StreamingResponse(self._rows(answer, settings, items), media_type=_LINES)
            rows: Rows = []
            size = 0
            async for part in self._parts(answer, settings, items):
                rows += part
                size += sum(map(len, part))
                if size > MOST_ANSWER:
                    why = f"the answer has over {MOST_ANSWER:,} bytes; lines ({_LINES}) have no end"
                    raise HTTPException(413, why)
                if len(rows) < len(items) and await request.is_disconnected():
                    break  # nobody reads the rest
            if form == "row" and len(rows) == 1:
                return Response(rows[0], media_type=_JSON)
            joined = b",\n".join(row.rstrip() for row in rows)
            return Response(b"[" + joined + b"]\n", media_type=_JSON)

        return respond

    async def _rows(self, answer: Answerer, settings: Any, items: Sequence[Any]) -> Any:
        """Yield the lines of an answer as they are computed; an error is the last line."""
        try:
            async for rows in self._parts(answer, settings, items):
                yield b"".join(rows)
        except DataError as error:
            yield dumps({"error": _words(error), "code": int(error.code)})

    async def _parts(
        self, answer: Answerer, settings: Any, items: Sequence[Any]
    ) -> AsyncIterator[Rows]:
        """Yield the rows of items part by part, one part ahead, so that the worker never waits."""
        assert self._worker is not None
        parts = _cut(answer, settings, items)
        ahead = deque[asyncio.Future[Rows]]()
        try:
            while True:
                for part, size in islice(parts, 2 - len(ahead)):
                    job = QueuedJob(answer.compute, settings, part, size)
                    ahead.append(asyncio.wrap_future(self._worker.submit(job)))
                if not ahead:
                    return
                yield await ahead.popleft()
        finally:
            for future in ahead:
                future.cancel()

    # ------------------------------------------------------------------------------- bank and page

    async def _show(self, request: Request) -> Response:
        """Answer with the page; a token in its address becomes a cookie."""
        given = request.query_params.get("token")
        if self._token is None or given is None:
            frame = {"Content-Security-Policy": "frame-ancestors 'none'"}
            return HTMLResponse(self._page, headers=frame)
        if not same(self._token, given):
            return failure(401, "this is not the token of the server")
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, given, httponly=True, samesite="strict")
        return answer

    async def _refuse(self, request: Request) -> Response:
        """Answer a question for which the server was not started with all that it needs."""
        why = self._index["lacks"][request.url.path.rpartition("/")[2]]
        raise HTTPException(404, f"{request.url.path}: {why}")

    async def _document(self, request: Request) -> Response:
        return HTMLResponse(
            self._docs, headers={"Content-Security-Policy": "frame-ancestors 'none'"}
        )

    async def _describe(self, request: Request) -> Response:
        return Response(dumps(openapi(self._opened.answers)), media_type=_JSON)

    async def _tell(self, request: Request) -> Response:
        """Answer with the facts of the bank, or with the names of some of its rows."""
        asked = request.query_params.getlist("row")
        if not asked:
            return Response(dumps(self._index), media_type=_JSON)
        return Response(dumps(_named(self._bank, asked)), media_type=_JSON)

    async def _find(self, request: Request) -> Response:
        """Answer with some of the images that have region features."""
        assert self._seen is not None
        asked = request.query_params.getlist("row")
        image = request.query_params.get("image")
        if image is not None:
            asked = [str(self._seen.named(image))]
        if asked:
            return Response(dumps(_named(self._seen, asked)), media_type=_JSON)
        text = request.query_params.get("find", "")
        if len(text) > _MOST_SOUGHT:
            why = f'"find" may have {_MOST_SOUGHT} characters, got {len(text)}'
            raise DataError(why, REQUEST, code=Exit.USAGE)
        first = int(_FIRST.read("first", request.query_params.get("first", "0")))
        found = await run_in_threadpool(self._seen.find, text, first)
        return Response(dumps(found), media_type=_JSON)

    def _sender(self, gallery: Gallery) -> Any:
        """Return the function that answers with the picture of a row."""

        async def send(request: Request) -> Response:
            row = gallery.row(str(request.path_params["row"]))
            side = request.query_params.get("side", str(SIDES[0]))
            if side not in map(str, SIDES):
                why = f'"side" must be one of {SIDES}, got {side!r:.60}'
                raise DataError(why, REQUEST, code=Exit.USAGE)
            kind, data = await run_in_threadpool(gallery.encoded, row, int(side))
            headers = {
                "Cache-Control": "private, max-age=86400",
                "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
            }
            return Response(data, media_type=kind, headers=headers)

        return send

    def _facts(self, name: str) -> dict[str, Any]:
        files = self._opened.manifest.get("files", {})
        return {
            "index": name,
            "count": len(self._bank),
            "answers": list(self._opened.answers),
            "lacks": {name: _LACKS[name] for name in _LACKS if name not in self._opened.answers},
            "pictures": self._bank.pictures is not None,
            **self._opened.facts,
            "matcher": self._opened.manifest.get("matcher"),
            "sha256": {file: facts.get("sha256") for file, facts in files.items()},
            "vg": __version__,
        }


# ----------------------------------------------------------------------------------------- requests

_FIRST = Setting("Images that are left out before them.", 0, 0, 1 << 31, whole=True)


def _named(gallery: Gallery, asked: Sequence[str]) -> list[dict[str, Any]]:
    """Return the names of some rows.

    Raises:
        DataError: too many (usage), or no such row (66).
    """
    if len(asked) > _MOST_NAMED:
        raise DataError(f'"row" may be given {_MOST_NAMED:,} times', REQUEST, code=Exit.USAGE)
    return [gallery.facts(gallery.row(text)) for text in asked]


async def _body(request: Request, most: int) -> bytes:
    """Return the body of a request.

    Raises:
        HTTPException: it is too large (413), or does not arrive (408).
    """
    why = f"the body has over {most:,} bytes; send less at a time, or use the command"
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise HTTPException(413, why)
    parts = list[bytes]()
    size = 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > most:
                    raise HTTPException(413, why)
    except TimeoutError:
        raise HTTPException(408, f"the body took over {_BODY_SECONDS} seconds") from None
    except ClientDisconnect:
        raise HTTPException(400, "the body ends before its length") from None
    return b"".join(parts)


def _window(body: bytes, kind: str) -> tuple[Window, str]:
    """Return the lines of a body, and the form of the answer: `row`, `list` or `lines`.

    Raises:
        DataError: JSON that is neither an object nor a list (65), or another type (usage).
        HTTPException: it has too many rows (413).
    """

    def check(count: int) -> None:
        if count > MOST_ROWS:
            why = f"the body has over {MOST_ROWS:,} rows; send less at a time, or use the command"
            raise HTTPException(413, why)

    def window(lines: Any, jsonl: bool | None) -> Window:
        return Window(REQUEST, 1, lines, "", jsonl=jsonl)

    if kind == "picture":
        return window([body], None), "row"
    if kind in (_LINES, "application/jsonl", "text/plain"):
        check(body.count(b"\n"))
        raw = body.split(b"\n")
        lines = [decode(line, not number) for number, line in enumerate(raw)]
        return window(lines if raw[-1] else lines[:-1], kind != "text/plain"), "lines"
    if kind != _JSON:
        why = f"Content-Type must be {_JSON}, {_LINES} or text/plain, got {kind!r:.60}"
        raise DataError(why, REQUEST, code=Exit.USAGE)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise DataError(f"not valid JSON: {error}", REQUEST) from None
    rows = value if isinstance(value, list) else [value]
    check(len(rows))
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            why = f"expected a JSON object, got {type(row).__name__}"
            raise DataError(why, REQUEST, number)
    return window(rows, True), "list" if isinstance(value, list) else "row"


def _settings(answer: Answerer, request: Request) -> tuple[Any, ...]:
    """Return the settings of a question, in the order of its answer.

    Raises:
        DataError: one that it does not have, or with a wrong value (usage).
    """
    for name in request.query_params:
        if name not in answer.settings:
            known = ", ".join(answer.settings) or "none"
            why = f'has no setting "{plain(name):.60}"; it has {known}'
            raise DataError(why, request.url.path, code=Exit.USAGE)
    given = request.query_params
    return tuple(
        one.read(name, given[name]) if name in given else one.default
        for name, one in answer.settings.items()
    )


def _cut(
    answer: Answerer, settings: tuple[Any, ...], items: Sequence[Any]
) -> Iterator[tuple[list[Any], int]]:
    """Yield items in parts of half a batch, with their sizes."""
    part: list[Any] = []
    size = 0
    for item in items:
        part.append(item)
        size += max(_LEAST, answer.size(item, settings))
        if size >= BATCH // 2:
            yield part, size
            part, size = [], 0
    if part:
        yield part, size


# ------------------------------------------------------------------------------------------- errors


def _words(error: DataError) -> str:
    """Return the message of a command about an error."""
    return plain(str(error).replace("\n", "\\n"))


async def _data_error(request: Request, error: DataError) -> Response:
    return failure(_STATUS.get(error.code, 400), _words(error), code=int(error.code))


async def _http_error(request: Request, error: HTTPException) -> Response:
    return failure(error.status_code, error.detail)


async def _internal_error(request: Request, error: Exception) -> Response:
    if is_out_of_memory(error):
        return failure(503, f"out of memory ({plain(error):.200}); send less at a time")
    why = f"internal error: {type(error).__name__}: {plain(error)}"
    print(f"vg serve: {why} (VG_TRACEBACK=1 prints where)", file=sys.stderr)
    if os.environ.get("VG_TRACEBACK"):
        traceback.print_exception(error)
    return failure(500, why)


# ---------------------------------------------------------------------------------------- openapi


def openapi(answers: Mapping[str, Answerer]) -> dict[str, Any]:
    """Return the description of the API, in OpenAPI's own form."""
    string = {"type": "string"}
    integer = {"type": "integer"}
    said = {"200": "The answer.", "default": '{"error": why} in the words of the commands.'}

    def call(about: str, parameters: list[Any], kinds: Mapping[str, Any] | None = None) -> Any:
        found: dict[str, Any] = {"summary": about, "parameters": parameters}
        if kinds is None:
            method = "get"
        else:
            method = "post"
            content = {kind: {"schema": schema} for kind, schema in kinds.items()}
            found["requestBody"] = {"required": True, "content": content}
        responses = {status: {"description": one} for status, one in said.items()}
        return {method: found | {"responses": responses}}

    def one(name: str, about: str, schema: Mapping[str, Any], place: str = "query") -> Any:
        required = {"required": True} if place == "path" else {}
        return {"name": name, "in": place, "description": about, "schema": schema, **required}

    paths = dict[str, Any]()
    for name, answer in answers.items():
        needed = ["text", "image"] if name in ("locate", "attention") else ["text"]
        item = {"type": "object", "properties": dict.fromkeys(needed, string), "required": needed}
        rows = {"oneOf": [item, {"type": "array", "items": item}]}
        kinds: dict[str, Any] = {_JSON: rows, _LINES: string}
        if needed == ["text"]:
            kinds["text/plain"] = string
        if name == "neighbours":
            kinds = {"image/*": {**string, "format": "binary"}}
        parameters = []
        for key, setting in answer.settings.items():
            default = {} if setting.default is None else {"default": setting.default}
            schema = {"type": "integer" if setting.whole else "number", **default}
            parameters.append(one(key, setting.about, schema))
        paths[f"/api/{name}"] = call(answer.about, parameters, kinds)
    row = one("row", "Rows of them; repeatable.", {"type": "array", "items": integer})
    place = one("row", "A row.", integer, "path")
    side = one("side", "Pixels of its longer side.", {**integer, "enum": SIDES})
    paths["/api/index"] = call("Facts of the bank, or the images of some of its rows.", [row])
    paths["/api/images/{row}"] = call("The picture of a row of the bank.", [place, side])
    if "attention" in answers:
        find = one("find", "Words of their ids, names and captions.", {**string, "default": ""})
        first = one("first", _FIRST.about, {**integer, "default": 0})
        about = f"Images with region features, {PAGE} at most, and how many there are; or rows."
        named = one("image", "The image of this id alone.", string)
        paths["/api/regions"] = call(about, [find, first, row, named])
        paths["/api/regions/{row}"] = call("The picture of one of them.", [place, side])
    info = {"title": "vg serve", "version": __version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths}
