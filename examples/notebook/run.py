"""Run the cells of a notebook and keep their outputs in it, without Jupyter.

    python examples/notebook/run.py examples/notebook/vokens.ipynb

`tests/examples/test_notebook.py` runs the cells with the same function.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def source_of(cell: dict[str, Any]) -> str:
    """Return the text of a cell, which the file may hold as lines."""
    text = cell["source"]
    return text if isinstance(text, str) else "".join(text)


def outputs_of(notebook: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Run the code cells in order, in one namespace, and yield each with its outputs."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse(source_of(cell))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        printed = io.StringIO()
        value = None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, "<cell>", "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
        outputs: list[dict[str, Any]] = []
        if printed.getvalue():
            lines = printed.getvalue().splitlines(keepends=True)
            outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
        if value is not None:
            data: dict[str, Any] = {"text/plain": repr(value)}
            html = value._repr_html_() if hasattr(value, "_repr_html_") else None
            if html is not None:
                data["text/html"] = html.splitlines(keepends=True)
            outputs.append({"output_type": "execute_result", "data": data, "metadata": {}})
        yield cell, outputs


def main(path: Path) -> None:
    """Write a notebook again with the outputs of its cells."""
    notebook = json.loads(path.read_text("utf-8"))
    for number, (cell, outputs) in enumerate(outputs_of(notebook), 1):
        cell["execution_count"] = number
        cell["outputs"] = [
            {**one, "execution_count": number} if one["output_type"] == "execute_result" else one
            for one in outputs
        ]
    path.write_text(json.dumps(notebook, ensure_ascii=False, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
