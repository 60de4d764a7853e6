"""Counts of Table 6, to the last parameter."""

from __future__ import annotations

from pathlib import Path

from vgtools.systems.xdbert.parameters import cross_layer, describe_all

CONFIGS = Path(__file__).parents[3] / "examples" / "xdbert" / "configs"


def test_a_cross_modal_layer_by_hand() -> None:
    # 768 beside 512: cross attention, self attention, feed-forward layer, as the design counts
    assert cross_layer(768, 512, 3072) == 1_970_688 + 2_363_904 + 4_723_968
    assert cross_layer(512, 768, 3072) == 1_313_792 + 1_051_648 + 3_150_336
    assert cross_layer(768, 512, 3072) + cross_layer(512, 768, 3072) == 14_574_336
    assert cross_layer(1024, 512, 4096) + cross_layer(512, 1024, 4096) == 22_575_616


def test_a_cross_modal_layer_is_what_torch_counts() -> None:
    from torch import nn

    width, other, inner = (12, 8, 20)
    cross = nn.MultiheadAttention(width, 2, kdim=other, vdim=other)
    own = nn.MultiheadAttention(width, 2)
    feed_forward = [nn.Linear(width, inner), nn.Linear(inner, width)]
    norms = [nn.LayerNorm(width) for _ in range(3)]
    parts = nn.ModuleList([cross, own, *feed_forward, *norms])
    assert cross_layer(width, other, inner) == sum(each.numel() for each in parts.parameters())


def test_table_6() -> None:
    names = ("bert-base", "electra-base", "electra-large", "clip-vit-b32")
    files = {name: str(CONFIGS / f"{name}.json") for name in names}
    *single, bert, base, large = describe_all(files.values(), 2)
    assert [record["model"] for record in single] == list(files.values())
    tower = files["clip-vit-b32"]
    assert bert == {
        "model": f"{files['bert-base']} + {tower}",
        "type": "xdbert",
        "cross_layers": 2,
        "parameters": 202_059_009,
    }
    assert (base["parameters"], large["parameters"]) == (201_468_417, 442_671_617)
    assert len(list(describe_all(files.values(), None))) == 4
    assert [r["type"] for r in describe_all([files["bert-base"]], 2)] == ["bert"]
