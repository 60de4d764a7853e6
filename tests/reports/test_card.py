"""The card of a repository has the facts of run.json or the manifest, and none of the machine's."""

from __future__ import annotations

from typing import Any

from vgtools.reports.card import card


def test_a_fine_tuned_run() -> None:
    body: dict[str, Any] = {
        "format": 1,
        "kind": "finetune",
        "argv": ["/home/me/.venv/bin/vg", "finetune", "rte", "/data/my glue/RTE", "-o", "runs/rte"],
        "versions": {"vgtools": "1.2"},
        "encoder": {"ref": "google-bert/bert-base-uncased"},
        "inputs": [{"path": "/data/glue/RTE/train.tsv", "bytes": 99, "sha256": "ab" * 32}],
        "seeds": {"1": {"accuracy": 60.0}, "2": {"accuracy": 64.0}},
        "summary": {
            "accuracy": {"mean": 62.0, "median": 62.0, "std": 2.828427, "min": 60.0, "max": 64.0}
        },
        "majority": {"accuracy": 52.7},
        "steps": 40,
    }
    text = card("me/rte", "rte", body, 1234, "mit")
    head, _, rest = text.removeprefix("---\n").partition("---\n")
    assert head == (
        'license: "mit"\nlibrary_name: "vgtools"\ntags: ["vgtools", "visual-grounding", '
        '"finetune"]\nbase_model: "google-bert/bert-base-uncased"\n'
    )
    assert "made by [vgtools](https://pypi.org/project/vgtools/) 1.2: 1,234 bytes." in rest
    assert "vg finetune rte RTE -o runs/rte" in rest
    assert "/home/me" not in rest
    assert "| train.tsv | 99 | abababababababab |" in rest
    expected = "± 2.828 over 2 seeds, 60 to 64 | most frequent label: 52.7 |"
    assert f"| accuracy | 62 | {expected}" in rest
    assert "| steps | 40 |  |  |" in rest
    assert "pip install vgtools\nvg compare me/rte my-run\n" in rest
    assert "## Cite" not in rest  # the encoder's card names its paper


def test_an_index_names_the_licences_of_its_pictures() -> None:
    manifest = {"vg": "1.2", "kind": "index", "licenses": {"CC BY 4.0": 9, "a|b": 1}, "count": 10}
    text = card("me/bank", "vg.faiss", manifest, 5)
    assert "vg vokenize text.txt --index me/bank" in text
    assert "| CC BY 4.0 | 9 |\n| a\\|b | 1 |" in text
    assert "license:" not in text.partition("# ")[0]
    assert "Hao Tan and Mohit Bansal (2020)" in text
    words = card("me/bank", "s.faiss", {**manifest, "keys": "captions"}, 5)
    assert "vg retrieve text.txt --index me/bank" in words


def test_a_manifest_that_was_edited_gives_a_card() -> None:
    odd: dict[str, Any] = {"kind": 3, "argv": None, "inputs": None, "best": 1, "versions": []}
    text = card("me/x", "x", odd, 0)
    odd |= {"inputs": [3], "summary": {"accuracy": 3}, "licenses": {"a\n# b": 1}}
    assert "| a # b | 1 |" in card("me/x", "x", odd, 0)
    assert "This is a file of kind 3" in text
