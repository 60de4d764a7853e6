"""A model hub on this machine, as far as huggingface_hub asks it: repositories, commits, files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

Files = dict[str, bytes]


@dataclass
class Hub:
    """The state of a hub, and the faults of its answers.

    Attributes:
        repos: "models/OWNER/NAME" -> the files of each commit, in order; "main" is the last.
        stored: large files by their sha256.
        fails: a pattern of requests that are answered with an error 500.
        cut: a pattern of files of which half arrives.
        asked: the requests so far.
    """

    repos: dict[str, list[Files]] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    fails: str = ""
    cut: str = ""
    asked: list[str] = field(default_factory=list)

    def __enter__(self) -> Hub:
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def commit(self, repo: str, revision: str) -> tuple[str, Files] | None:
        """Return the name and files of a commit."""
        commits = self.repos[repo]
        names = [_sha(repo, number) for number in range(len(commits))]
        if revision == "main" and commits:
            return names[-1], commits[-1]
        return (revision, commits[names.index(revision)]) if revision in names else None


def _sha(repo: str, number: int) -> str:
    return hashlib.sha1(f"{repo} {number}".encode()).hexdigest()


def _is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".faiss", ".npy", ".parquet"))


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: Any = b"", status: int = 200, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        size = headers.pop("size", str(len(data)))
        headers = {"Content-Length": size, "Content-Type": "application/json", **headers}
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _fault(self, code: str) -> None:
        self._answer({"error": code}, 404, X_Error_Code=code)

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        chunks = self.headers.get("Transfer-Encoding") == "chunked"
        data = b"".join(iter(self._chunk, b"")) if chunks else self.rfile.read(length)
        path = unquote(self.path.partition("?")[0])
        self.hub.asked.append(f"{self.command} {path}")
        if self.hub.fails and re.search(self.hub.fails, self.hub.asked[-1]):
            self._answer({"error": "it is down"}, 500)
            return
        for pattern, serve in _ROUTES:
            if found := re.fullmatch(pattern, path):
                serve(self, data, *found.groups())
                return
        self._fault("NoRoute")

    do_GET = do_HEAD = do_POST = do_PUT = _serve

    def _chunk(self) -> bytes:
        data = self.rfile.read(int(self.rfile.readline(), 16))
        self.rfile.readline()
        return data

    def home(self, data: bytes) -> None:
        self._answer(b"hello")

    def create(self, data: bytes) -> None:
        asked = json.loads(data)
        name = f"{asked.get('type') or 'model'}s/{asked['organization']}/{asked['name']}"
        status = 409 if name in self.hub.repos else 200
        self.hub.repos.setdefault(name, [{}])
        self._answer({"url": f"{self.hub.url}/{name.removeprefix('models/')}"}, status)

    def valid(self, data: bytes) -> None:
        self._answer({"errors": [], "warnings": []})

    def info(self, data: bytes, repo: str, revision: str | None) -> None:
        if repo not in self.hub.repos:
            self._fault("RepoNotFound")
        elif (found := self.hub.commit(repo, revision or "main")) is None:
            self._fault("RevisionNotFound")
        else:
            names = [{"rfilename": name} for name in found[1]]
            name = repo.partition("/")[2]
            self._answer({"id": name, "sha": found[0], "siblings": names, "private": False})

    def tree(self, data: bytes, repo: str, revision: str, folder: str | None) -> None:
        if repo not in self.hub.repos:
            self._fault("RepoNotFound")
            return
        commit = self.hub.commit(repo, revision)
        files = commit[1] if commit else {}
        inside = f"{folder}/" if folder else ""
        found = {path: one for path, one in files.items() if path.startswith(inside)}
        entries = list[dict[str, Any]]()
        if "recursive=true" not in self.path.lower():
            folders = {
                path[: path.index("/", len(inside))] for path in found if "/" in path[len(inside) :]
            }
            entries = [
                {"type": "directory", "oid": _sha(each, 0), "path": each}
                for each in sorted(folders)
            ]
            found = {path: one for path, one in found.items() if "/" not in path[len(inside) :]}
        self._answer(entries + [_entry(path, one) for path, one in found.items()])

    def paths(self, data: bytes, repo: str, revision: str) -> None:
        found = self.hub.commit(repo, revision) if repo in self.hub.repos else None
        files = found[1] if found else {}
        asked = json.loads(data)["paths"]
        self._answer([_entry(path, files[path]) for path in asked if path in files])

    def preupload(self, data: bytes, repo: str, revision: str) -> None:
        paths = [file["path"] for file in json.loads(data)["files"]]
        modes = [{"path": p, "uploadMode": "lfs" if _is_large(p) else "regular"} for p in paths]
        self._answer({"files": [{**mode, "shouldIgnore": False} for mode in modes]})

    def batch(self, data: bytes, repo: str) -> None:
        objects = json.loads(data)["objects"]
        actions = [{"upload": {"href": f"{self.hub.url}/lfs/{one['oid']}"}} for one in objects]
        found = [{**one, "actions": a} for one, a in zip(objects, actions, strict=True)]
        self._answer({"transfer": "basic", "objects": found})

    def store(self, data: bytes, oid: str) -> None:
        self.hub.stored[oid] = data
        self._answer()

    def write(self, data: bytes, repo: str, revision: str) -> None:
        files = dict(self.hub.repos[repo][-1])
        for line in data.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
        self.hub.repos[repo].append(files)
        sha = _sha(repo, len(self.hub.repos[repo]) - 1)
        url = f"{self.hub.url}/{repo}/commit/{sha}"
        self._answer({"success": True, "commitUrl": url, "commitOid": sha})

    def file(self, data: bytes, kind: str | None, name: str, revision: str, path: str) -> None:
        repo = f"{kind or 'models/'}{name}"
        if repo not in self.hub.repos:
            self._fault("RepoNotFound")
            return
        found = self.hub.commit(repo, revision)
        if found is None or path not in found[1]:
            self._fault("RevisionNotFound" if found is None else "EntryNotFound")
            return
        content = found[1][path]
        tag = f'"{hashlib.sha256(content).hexdigest()}"'
        facts = {"ETag": tag, "X_Repo_Commit": found[0], "X_Linked_Size": str(len(content))}
        facts |= {"X_Linked_Etag": tag, "size": str(len(content))}
        if self.hub.cut and re.search(self.hub.cut, path) and self.command == "GET":
            content = content[: len(content) // 2]
            self.close_connection = True
        part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if part and self.command == "GET":
            end = min(int(part[2] or len(content)), len(content) - 1)
            facts["Content_Range"] = f"bytes {part[1]}-{end}/{len(content)}"
            content = content[int(part[1]) : end + 1]
            facts["size"] = str(len(content))
        self._answer(content, 206 if "Content_Range" in facts else 200, **facts)


def _entry(path: str, content: bytes) -> dict[str, Any]:
    sha1 = hashlib.sha1(content).hexdigest()
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": sha1}
    if _is_large(path):
        sha256 = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 130}
    return entry


_REPO = r"((?:models|datasets)/[^/]+/[^/]+)"
_ROUTES: list[tuple[str, Callable[..., None]]] = [
    ("/?", _Handler.home),
    ("/api/repos/create", _Handler.create),
    ("/api/validate-yaml", _Handler.valid),
    (f"/api/{_REPO}(?:/revision/([^/]+))?", _Handler.info),
    (f"/api/{_REPO}/tree/([^/]+)(?:/(.+))?", _Handler.tree),
    (f"/api/{_REPO}/paths-info/([^/]+)", _Handler.paths),
    (f"/api/{_REPO}/preupload/([^/]+)", _Handler.preupload),
    (f"/api/{_REPO}/commit/([^/]+)", _Handler.write),
    (r"/((?:datasets/)?[^/]+/[^/]+)\.git/info/lfs/objects/batch", _Handler.batch),
    ("/lfs/(.+)", _Handler.store),
    ("/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", _Handler.file),
]
