"""Commands without the seconds that Python takes to import torch: a process that has imported it
forks one for each, which reads, writes, runs and ends as `vg` does.

`python server.py SOCKET ARGS…` is `vg ARGS…` by the server at SOCKET.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys


def ask(address: str, args: list[str]) -> int:
    """Let the server run a command here, with these streams; return its exit code."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
        body = json.dumps([args, os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(client, [len(body).to_bytes(8, "big")], [0, 1, 2])
        client.sendall(body)
        answer = client.recv(4)
    return int.from_bytes(answer, "big") if answer else 1


def serve(listener: socket.socket) -> None:
    """Run what clients ask for until this process is ended."""
    import signal

    # Not nltk: it reads NLTK_DATA, which a row sets, when it is imported.
    for name in ("torch", "transformers", "timm", "faiss", "spacy", "scipy.stats"):
        with contextlib.suppress(ImportError):
            __import__(name)
    from vgtools import cli

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            head, streams, _, _ = socket.recv_fds(client, 8, 3)
            body = b""
            while len(body) < int.from_bytes(head, "big"):
                body += client.recv(1 << 16)
            args, folder, environment = json.loads(body)
            child = os.fork()
            if child == 0:
                client.close()
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                    os.close(stream)
                os.chdir(folder)
                os.environ.clear()
                os.environ.update(environment)
                sys.argv = ["vg", *args]
                cli.main(args)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with contextlib.suppress(OSError):
                client.sendall((code % 256).to_bytes(4, "big"))
            os._exit(0)
        client.close()


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]))
