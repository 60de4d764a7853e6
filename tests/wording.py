"""List the wording that a reader stumbles over: `python tests/wording.py [PATH …]`.

Each hit is printed as `FILE:LINE: pattern: text`, the counts follow on stderr. Without PATH
everything that a user or developer reads is searched; `--ceilings` prints the dict of
`tests/test_wording.py` instead. Searched are the docstrings, messages and comments of code, and all
of other files.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PLACES = (
    "vgtools/**/*.py",
    "vgtools/**/*.html",
    "vgtools/**/*.js",
    "vgtools/commands/help/*.txt",
    "man/*.py",
    "man/*.1",
    "man/*.md",
    "examples/**/*.md",
    "examples/**/*.py",
    "examples/**/Makefile",
    "examples/**/*.mk",
    "*.md",
    "Makefile",
)

# "Lines a step": a plural or a number, "a", and what there are many of. Verbs in -s are no plurals.
_VERB = (
    r"(?:is|was|has|does|as|this|takes|holds|gives|returns|makes|names|reads|writes|shows|opens|needs|gets|keeps|"
    r"puts|sees|finds|means|says|lets|prints|draws|builds|starts|ends|follows|begins|counts|cuts|adds|becomes|"
    r"uses|scores|leaves|fits|sets|asks|masks|fails|learns|calls|covers|locks|joins|splits|marks|yields|checks|"
    r"spans|drops|meets|maps|loads|runs|trains|answers|ranks|changes|costs|comes|goes|always|perhaps|across|less|"
    r"unless|besides|towards|decides|chooses|expects|sums|belongs|replaces|wants|refuses|stands|contains|"
    r"describes|misses|stores|encloses|accepts|reports|skips|sends|carries|tries|closes|moves|matches|produces|"
    r"raises|wraps|turns|parses|converts|computes|creates|lists|exits|states|extends|happens|breaks|identifies|"
    r"orders|embeds|its|us|thus|for|of|in|by|to|per|with|at|on|from|and|or|that|which|about|whether|if|than)"
)
_COUNTED = (
    rf"(?:one|two|three|four|five|six|ten|once|twice|\d+|k|(?!{_VERB}\b)[\w-]+s|text|"
    rf"(?:one|two|three|four|five|\d+|k) (?!{_VERB}\b)[\w-]+)"
)
_UNIT = (
    r"(?:(?:forward|training|work)[ -])?"
    r"(?:step|image|line|row|GPU|device|caption|sentence|photo|process|token|word|"
    r"epoch|second|minute|hour|day|seed|picture|task|head|layer|batch|run|file|type|item|example|question|box|"
    r"region|class|pass|thread|core|phrase|command|paper|kind|record|side|block|chunk|byte|node|system|page|"
    r"voken|window|measure|key|split|model|query|pair|group|folder|piece|name|corpus|encoder|column|corner|"
    r"candidate|choice|answer|text|id|statistic|dimension|channel|bin|entry|place|test|unit|scale|bit)"
)
# Verbs before a true question: "shows what a photo is worth", "decide what images were found".
_ASKING = (
    r"(?:[Aa]sk|[Kk]now|[Ss]how|[Ll]earn|[Mm]easure|[Ee]xplain|[Dd]ecide|[Pp]redict|[Gg]uess|[Ss]ee|"
    r"[Mm]atter|[Cc]hoose|[Tt]est)(?:e?s|e?d|n|ing)?"
)

# The counted patterns, by name: a regular expression over prose in which every run of blanks is one
# space.
PATTERNS: dict[str, str] = {
    "a (per)": rf"\b(?<!which )(?<!to ){_COUNTED} an? {_UNIT}\b"
    r"(?!'s| (?:that|which|is|has|may|counts|takes|also|made|at a|of some|for this|bank|type)\b)",
    "stands": r"\b(?:stands?|stood|standing)\b(?!-| (?:for|alone)\b)",
    "wanted": r"\bwanted\b",
    "is no": r"(?<![Tt]here )\b(?:is|are|was|were|be) (?:no|none)\b"
    r"(?! (?:longer|better|worse|more than|one)\b)",
    "behind": r"(?<![Ll]eave nothing )\bbehind\b",
    "goes on": r"\b(?:go|goes|going|went|gone) on\b(?! to\b)",
    "anew": r"\banew\b",
    "tells": r"\b(?:tells?|told|telling)\b(?! the user\b| (?:\S+ ){0,4}apart\b)",
    "say whether": r"\bSay (?:whether|if|which|what|why|how)\b|\b(?:is|are|was|were|be) said\b",
    "so many": r"\bso many\b",
    "suffice": r"\b(?:not|no longer) suffice\b|\bmemory suffices\b",
    "most of": r"\bMost (?:of (?:them|it|these|those)|\w+s (?:of )?an?)\b"
    r"|\b(?:is|are) the most\b(?! \w)",
    "in the way": r"\bin the way\b(?! of\b)",
    "memory was short": r"\bmemory (?:is|was|runs|ran) short\b",
    "dear": r"\bdear(?:er|ly)?\b",
    "of no use": r"\bof no use\b",
    "what (noun)": rf"(?:^|[^\w' ] |\b(?!{_ASKING} )[\w'-]+ )[Ww]hat\b(?!:)(?![^.|!]*\?)",
    "of (fragment)": r"(?:^|\| |(?<=[.!?;:] ))of\b",
    "Of a folder, …": r"(?:^|\| |(?<=[.!?;:] ))Of\b",
    "that of": r"\b(?:that|those) of\b",
    "a file says": r"(?<!paper )(?<!papers )(?<!paper does not )(?<!caption )(?<!captions )(?<!, )"
    r"\b(?:says?(?!:)|said(?!\")|saying)\b",
    "another one": r"\b(?:another|the \w+|an? \w+) one\b",
    "beside": r"\bbeside\b",
    "begin": r"\b(?:[Bb]egins?|began|begun)\b",
    ", too": r", too\b",
    "in place of": r"\bin place of\b",
    "learnt": r"\blearnt\b",
    "per cent": r"\bper cent\b",
    ".9": r"(?<![\w.\])/\"'=#*-])\.\d+\b",
}

# True uses: {words around the hit: reason}.
ALLOWED: dict[str, str] = {
    "they told me about": "a carrier sentence of `vg prepare openmoji`: data, whose bytes do not "
    "change",
    "Count more as done. | of X": "the middle of the line of progress, `1,000 of 5,000 images`",
    "on line X | of X": "the end of a place, `on line 3 of captions.jsonl`",
    "what're what's": "contractions of VQA's published evaluation: data",
}


SUFFIXES = (".py", ".md", ".mk", ".1", ".html", ".js")


class Hit(NamedTuple):
    """A pattern at a place of a file."""

    file: str
    line: int
    pattern: str
    text: str


class Prose:
    """The prose of a file: its words, and the line that each character comes from."""

    def __init__(self) -> None:
        self.text = ""
        self.lines: list[int] = []

    def add(self, text: str, line: int) -> None:
        """Append text that starts on a line; runs of blanks become one space."""
        for character in text:
            blank = character in " \t\n"
            if not (blank and self.text.endswith(" ")):
                self.text += " " if blank else character
                self.lines.append(line)
            line += character == "\n"


def python_prose(source: str) -> Prose:
    """Return docstrings, messages and comments of Python code; code between them
    ends a sentence.
    """
    prose = Prose()
    rows = source.splitlines(keepends=True)
    starts: list[tuple[int, int]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind.endswith("STRING_START"):
            starts.append(token.start)
        elif kind.endswith("STRING_END"):
            start = starts.pop()
            if not starts:
                prose.add(_literal(_slice(rows, start, token.end)) + " ", start[0])
        elif starts or kind in ("NL", "NEWLINE", "INDENT", "DEDENT", "ENCODING"):
            continue
        elif kind == "COMMENT":
            prose.add(f"{token.string.lstrip('#: ')} ", token.start[0])
        elif kind == "STRING":
            prose.add(_literal(token.string) + " ", token.start[0])
        else:
            if not prose.text.endswith("| "):
                prose.add("| ", token.start[0])
    return prose


def _slice(rows: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    if start[0] == end[0]:
        return rows[start[0] - 1][start[1] : end[1]]
    middle = rows[start[0] : end[0] - 1]
    return "".join([rows[start[0] - 1][start[1] :], *middle, rows[end[0] - 1][: end[1]]])


def _literal(source: str) -> str:
    """Return a string literal as prose: X for a word alone (a key, a name), for a field and for
    `code`.
    """
    form = re.fullmatch(r"([a-zA-Z]*)('''|\"\"\"|'|\")(.*)\2", source, re.S)
    assert form is not None, source
    text = form[3].replace("\\n", "  ")
    if " " not in text.strip() and not form[2][2:]:
        return "X"
    if "f" in form[1].lower():
        text = re.sub(r"\{([^{}]*)\}", _field, text.replace("{{", "(").replace("}}", ")"))
    return _without_code(text)


def _field(found: re.Match[str]) -> str:
    """Return the sentences that a replacement field chooses from, or X."""
    choices = [x for x in re.findall(r"\"[^\"]*\"|'[^']*'", found[1]) if " " in x.strip("'\" ")]
    return " | ".join(x.strip("'\"") for x in choices) or "X"


def _without_code(text: str) -> str:
    return re.sub(r"(`+)[^`]+\1", lambda code: "X" + "\n" * code[0].count("\n"), text)


def prose_of(path: Path) -> Prose:
    """Return the prose of a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return python_prose(text)
    if path.suffix == ".1":
        text = (
            text.replace("\\-", "-").replace("\\(aq", "'").replace("\\(ga", "`").replace("\\&", "")
        )
        text = re.sub(r"(?m)^\.(?:PP|nf|fi|RS|RE|TP|SH.*|TH.*)$", "|", text)
    elif path.suffix == ".html":
        text = re.sub(r"\{%.*?%\}", " ", re.sub(r"\{\{.*?\}\}", "X", text))
    elif path.suffix == ".js":  # comments and strings, in their lines
        words = re.compile(r"//.*|\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`")
        kept = (
            [x.strip("`") for x in words.findall(line) if " " in x] for line in text.splitlines()
        )
        text = "\n".join(" | ".join(line) for line in kept)
    elif path.suffix == ".md":
        text = re.sub(r"(?m)^```.*$", "|", text)
    else:
        text = re.sub(r"(?m)^# ?", "", text)
    prose = Prose()
    prose.add(_without_code(text), 1)
    return prose


def files(root: Path = ROOT) -> list[Path]:
    """Return the files whose words are counted."""
    return sorted({path for place in PLACES for path in root.glob(place)})


def find(paths: list[Path], root: Path = ROOT) -> Iterator[Hit]:
    """Yield every use of a pattern that is not among the true ones."""
    for path in paths:
        prose = prose_of(path)
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
        for pattern, expression in PATTERNS.items():
            for found in re.finditer(expression, prose.text):
                around = prose.text[max(found.start() - 45, 0) : found.end() + 45]
                if any(words in around for words in ALLOWED):
                    continue
                yield Hit(name, prose.lines[found.start()], pattern, around.strip())


def long_lines(root: Path = ROOT) -> list[tuple[str, int]]:
    """Return the lines of the package over 100 columns: file and number."""
    return [
        (path.relative_to(root).as_posix(), number)
        for path in sorted(root.glob("vgtools/**/*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 100
    ]


def trees(root: Path = ROOT) -> dict[str, ast.Module]:
    """Return the package's modules, parsed, by path."""
    paths = sorted(root.glob("vgtools/**/*.py"))
    return {p.relative_to(root).as_posix(): ast.parse(p.read_text(encoding="utf-8")) for p in paths}


def assignments(root: Path = ROOT) -> tuple[list[tuple[str, int]], int]:
    """Return where `a, b = x, y` assigns two things on one line (a swap is one thing), and all
    assignments.
    """
    paired: list[tuple[str, int]] = []
    total = 0
    for name, tree in trees(root).items():
        for node in ast.walk(tree):
            total += isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign))
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
                continue
            target = node.targets[0]
            if isinstance(target, ast.Tuple) and len(target.elts) == len(node.value.elts):
                left, right = ({ast.unparse(x) for x in side.elts} for side in (target, node.value))
                if left != right:
                    paired.append((name, node.lineno))
    return paired, total


def undocumented(root: Path = ROOT) -> list[tuple[str, int]]:
    """Return the public modules, classes and functions without a docstring."""
    bare: list[tuple[str, int]] = []
    for name, tree in trees(root).items():
        public: list[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef] = [tree]
        for scope in public:
            if not ast.get_docstring(scope):
                bare.append((name, getattr(scope, "lineno", 1)))
            if isinstance(scope, ast.Module | ast.ClassDef):
                public += [
                    node
                    for node in scope.body
                    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                    and not node.name.startswith("_")
                    and not any(ast.unparse(x).endswith("overload") for x in node.decorator_list)
                ]
    return bare


def counts(root: Path = ROOT) -> dict[str, int]:
    """Return the counts that `tests/test_wording.py` holds down: hits of each pattern, and three
    habits of code.
    """
    hits = Counter(hit.pattern for hit in find(files(root), root))
    return {
        **{pattern: hits[pattern] for pattern in PATTERNS},
        "lines over 100 columns": len(long_lines(root)),
        "a, b = x, y": len(assignments(root)[0]),
        "public names without docstring": len(undocumented(root)),
    }


def main(arguments: list[str]) -> int:
    """Print the hits in the given files and folders, and their counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="files and folders")
    parser.add_argument("--ceilings", action="store_true", help="print the dict of the test")
    given = parser.parse_args(arguments)
    if given.ceilings:
        print(
            "CEILINGS = {\n"
            + "".join(f'    "{name}": {count},\n' for name, count in counts().items())
            + "}"
        )
        return 0
    paths: list[Path] = []
    for argument in given.paths:
        if not argument.exists():
            parser.error(f"{argument} does not exist")
        inside = [
            p for p in sorted(argument.rglob("*")) if p.suffix in SUFFIXES or p.name == "Makefile"
        ]
        paths += [p.resolve() for p in (inside if argument.is_dir() else [argument])]
    hits = sorted(find(paths or files()))
    for hit in hits:
        print(f"{hit.file}:{hit.line}: {hit.pattern}: {hit.text}")
    for pattern, count in Counter(hit.pattern for hit in hits).most_common():
        print(f"{count:5} {pattern}", file=sys.stderr)
    print(f"{len(hits):5} in all", file=sys.stderr)
    return bool(hits)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
