"""The card of a run, an index or rows on a model hub, from its run.json or manifest."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_PAPERS = {
    "vokenization": "Hao Tan and Mohit Bansal (2020). Vokenization: Improving Language "
    "Understanding with Contextualized, Visual-Grounded Supervision. EMNLP 2020.",
    "grounding": "Damien Sileo (2021). Visual Grounding Strategies for Text-Only Natural Language "
    "Processing. LANTERN 2021.",
    "visual-awareness": "Zhuosheng Zhang, Rui Wang, Kehai Chen, Masao Utiyama, Eiichiro Sumita and "
    "Hai Zhao (2019). Probing Contextualized Sentence Representations with Visual Awareness. "
    "arXiv:1911.02971.",
    "xdbert": "Chan-Jan Hsu, Hung-yi Lee and Yu Tsao (2022). XDBERT: Distilling Visual "
    "Information to BERT from Cross-Modal Systems to Improve Language Understanding. ACL 2022.",
    "visualbert": "Liunian Harold Li, Mark Yatskar, Da Yin, Cho-Jui Hsieh and Kai-Wei Chang "
    "(2020). What Does BERT with Vision Look At? ACL 2020.",
}


class _Kind(NamedTuple):
    what: str
    use: str  # a command, with the name of the repository as {}
    paper: str = ""


_TUNE = "vg finetune sst-2 glue/SST-2 --encoder {} -o run"
_KINDS = {
    "matcher": _Kind(
        "a matcher of tokens and images",
        "vg build-index feats.npy --matcher {} -o vg.faiss",
        "vokenization",
    ),
    "retriever": _Kind(
        "a retriever of images for sentences",
        "vg build-index grid.npy --matcher {} -o vg.faiss",
        "visual-awareness",
    ),
    "voken_lm": _Kind("a language model pretrained with vokens", _TUNE, "vokenization"),
    "grounding": _Kind("a language model that sees images", _TUNE, "grounding"),
    "visualbert": _Kind("a VisualBERT", _TUNE, "visualbert"),
    "xdbert": _Kind("an encoder adapted next to a CLIP text tower", _TUNE, "xdbert"),
    "clip": _Kind("a CLIP text tower", _TUNE),
    "finetune": _Kind(
        "fine-tuned models of a task, with their predictions", "vg compare {} my-run"
    ),
    "index": _Kind("an image bank", "vg vokenize text.txt --index {} -o vokens.jsonl"),
    "vokens": _Kind(
        "vokens: a text with an image for every token",
        "vg revokenize {} --tokenizer FacebookAI/roberta-base -o vokens.npy",
        "vokenization",
    ),
    "retrieved": _Kind("texts with the images that were found for them", "vg show {} | head"),
    "heat": _Kind("texts with the places in pictures that they name", "vg show {} | head"),
}


def card(
    name: str, title: str, body: Mapping[str, Any], size: int, license: str | None = None
) -> str:
    """Return the README.md of a repository.

    Args:
        name: OWNER/NAME.
        title: the name of the file or folder here.
        body: the run.json, or the manifest.
        size: bytes of all files.
        license: its identifier, as the hub knows it.
    """
    kind = str(body.get("kind") or "file")
    about = _KINDS.get(kind, _Kind(f"a file of kind {kind}", "hf download {}"))
    if body.get("keys") not in (None, "matcher"):  # an index that words are looked up in
        about = about._replace(use="vg retrieve text.txt --index {}")
    paper = about.paper or ("" if kind == "finetune" else "vokenization")
    parts = [
        _head(kind, body, license),
        f"# {title}\n\nThis is {about.what}, made by "
        f"[vgtools](https://pypi.org/project/vgtools/) {_version(body)}: {size:,} bytes.",
        f"```sh\npip install vgtools\n{about.use.format(name)}\n```",
        f"## How it was made\n\n```sh\n{_command(body.get('argv'))}\n```",
        _table("## Data", ("input", "bytes", "sha256"), _inputs(body.get("inputs"))),
        _licences(body.get("licenses")),
        _table("## Numbers", ("number", "value", "spread", "control"), _numbers(body)),
        f"## Cite\n\n{_PAPERS[paper]}" if paper else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _head(kind: str, body: Mapping[str, Any], license: str | None) -> str:
    facts: dict[str, Any] = {"license": license} if license else {}
    facts |= {"library_name": "vgtools", "tags": ["vgtools", "visual-grounding", kind]}
    encoder = body.get("encoder")
    base = encoder.get("ref", "") if isinstance(encoder, Mapping) else ""
    if re.fullmatch(r"[\w.-]+/[\w.-]+", str(base)):
        facts["base_model"] = base
    # YAML contains JSON.
    lines = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in facts.items())
    return "\n".join(("---", *lines, "---"))


def _version(body: Mapping[str, Any]) -> str:
    loaded = body.get("versions")
    found = loaded.get("vgtools") if isinstance(loaded, Mapping) else None
    return str(body.get("vg") or found or "")


def _command(argv: Any) -> str:
    """Return the command line, without the folders of the machine that it ran on."""
    words = argv if isinstance(argv, list) else []
    return shlex.join(re.sub(r"^(/|~).*/(?=[^/])", "", str(word)) for word in words)


def _inputs(inputs: Any) -> Iterator[Sequence[object]]:
    entries = inputs if isinstance(inputs, list) else ()
    for entry in (one for one in entries if isinstance(one, Mapping)):
        file = str(entry.get("path", "")).rstrip("/").rpartition("/")[2]
        yield file, f"{entry.get('bytes', '')}", str(entry.get("sha256", ""))[:16]


def _licences(found: Any) -> str:
    if not isinstance(found, Mapping) or not found:
        return ""
    rows = [(name, number) for name, number in found.items()]
    return _table("Licences of the pictures:", ("licence", "pictures"), rows)


def _numbers(body: Mapping[str, Any]) -> Iterator[Sequence[object]]:
    """Yield the measured numbers of a run, or the counts of a file, with spread and control."""
    majority = body.get("majority")
    control = majority if isinstance(majority, Mapping) else {}
    summary = body.get("summary")
    for name, found in (summary if isinstance(summary, Mapping) else {}).items():
        if not isinstance(found, Mapping):
            continue
        runs = len(body.get("seeds", ()))
        low, high = (_short(found.get(key)) for key in ("min", "max"))
        spread = f"± {_short(found.get('std'))} over {runs} seeds, {low} to {high}"
        chance = f"most frequent label: {_short(control[name])}" if name in control else ""
        yield name, _short(found.get("mean")), spread, chance
    best = body.get("best")
    sources = (best if isinstance(best, Mapping) else {}, body)
    for place, source in enumerate(sources):
        for name, value in source.items():
            if type(value) in (int, float) and name not in ("best", "format"):
                spread = _short(source.get(f"{name}_interval", ""))
                yield name, _short(value), spread, ("" if place else "best epoch")


def _short(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(map(_short, value))
    return f"{value:,.4g}" if type(value) is float else f"{value}"


def _table(title: str, head: Sequence[str], rows: Any) -> str:
    cells = [head, ["---"] * len(head), *rows]
    if len(cells) == 2:
        return ""
    lines = (
        "| " + " | ".join(" ".join(str(cell).replace("|", "\\|").split()) for cell in row) + " |"
        for row in cells
    )
    return f"{title}\n\n" + "\n".join(lines)
