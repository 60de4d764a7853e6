"""The table of `tests/measure.py`, on an invented checkout whose numbers are worked by hand."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.measure import circles, edges, floors, kinds_of_line, parameters, table, upward


def checkout(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "vgtools" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_edges_floors_circles_and_what_points_up(tmp_path: Path) -> None:
    root = checkout(
        tmp_path,
        {
            "__init__.py": "",
            "cli.py": "from vgtools.commands import run\n",
            "commands/__init__.py": "",
            "commands/run.py": "import vgtools.tasks.table\nfrom .. import tasks\n",
            "tasks/__init__.py": "",
            "tasks/table.py": "def late():\n    from vgtools.systems import paper\n",
            "systems/__init__.py": "",
            "systems/paper.py": "from vgtools import tasks\nfrom vgtools.io.files import read\n",
            "io/__init__.py": "",
            "io/files.py": "import os\n",
        },
    )
    units, found = edges(root)
    assert units == {"__init__", "cli", "commands", "tasks", "systems", "io"}
    assert found == {
        ("cli", "commands"),
        ("commands", "tasks"),
        ("tasks", "systems"),
        ("systems", "tasks"),
        ("systems", "io"),
    }
    assert circles(units, found) == [{"tasks", "systems"}]
    assert floors(units, found) == 4
    assert upward(found) == "1 (tasks -> systems)"


def test_lines_parameters_and_the_longest_function(tmp_path: Path) -> None:
    source = (
        '"""Doc."""\n\n# a reason\nclass A:\n    """One\n\n    two."""\n\n'
        '    def f(self, a, *b, c=1, **d):\n        """Do."""\n        x, y = a, c\n'
        '        return """\n\n"""\n'
    )
    tree = ast.parse(source)
    assert kinds_of_line(source, tree) == {"doc": 5, "blank": 2, "comment": 1, "code": 6}
    function = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    assert parameters(function) == 2
    rows = dict(table(checkout(tmp_path, {"a.py": source})))
    assert rows["longest function, lines of body"] == "4 (`f`, vgtools/a.py)"
    assert rows["`a, b = x, y` of all assignments"] == "1 of 1 (100.0%)"
    assert rows["lines"] == "14"
