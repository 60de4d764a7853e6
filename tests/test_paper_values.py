"""Values and rules of the papers as literals: a change of one of them fails here."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.systems.visualbert import test_model as visual
from tests.systems.vokenization import test_voken_lm as voken_lm
from vgtools.commands.options import Optimizer
from vgtools.commands.pretrain.flags import MaskingFlags
from vgtools.commands.pretrain.lm import LmOptimizer
from vgtools.commands.pretrain.visualbert import VisualBertOptimizer
from vgtools.commands.pretrain.xdbert import TextBlocks, XDBertOptimizer
from vgtools.commands.vokenize import Control
from vgtools.images.regions import RegionSet
from vgtools.reports.tables import reported
from vgtools.systems.attention_probes import region_heads, scores
from vgtools.systems.vokenization import matcher as matcher_module
from vgtools.systems.vokenization.matcher import MatcherConfig, TokenImageMatcher
from vgtools.tasks.kinds.classify import consistency
from vgtools.tasks.predictions import Items


def test_defaults() -> None:
    lm, visualbert = LmOptimizer(), VisualBertOptimizer()
    assert (lm.epochs, lm.batch_size, lm.lr, lm.warmup) == (40, 256, 2e-4, 0.05)
    assert (visualbert.epochs, visualbert.batch_size) == (10, 64)
    assert (visualbert.lr, visualbert.warmup) == (5e-5, 0.1)
    xdbert = XDBertOptimizer()
    assert (xdbert.epochs, xdbert.batch_size, xdbert.lr, xdbert.warmup) == (1, 256, 1e-4, 0.05)
    assert (TextBlocks.block, TextBlocks.mask_rate) == (512, 0.15)
    assert (Optimizer.weight_decay, Optimizer.clip, Optimizer.schedule) == (0.01, 1.0, "linear")
    assert (MaskingFlags.block, MaskingFlags.mask_rate) == (128, 0.15)
    assert (Control.gamma, scores.ACTIVE, region_heads.OVERLAP) == (0.01, 0.2, 0.5)
    matcher = MatcherConfig(1, 1)
    assert (matcher.layers, matcher.hidden, matcher.dim) == (4, 512, 256)
    assert (matcher.dropout, matcher.margin) == (0.3, 0.5)


def test_table_1() -> None:
    keys = ("tokens", "sentences", "vocabulary", "tokens_per_sentence")
    keys += ("jsd_1", "jsd_2", "grounding_ratio")
    assert {
        row["corpus"]: tuple(row[key] for key in keys)
        for row in reported("vokenization:1", "corpora")
    } == {
        "MS COCO": (7.0e6, 0.6e6, 9e3, 11.8, 0.15, 0.27, 0.548),
        "Visual Genome": (29.2e6, 5.3e6, 13e3, 5.5, 0.16, 0.28, 0.576),
        "Conceptual Captions": (29.9e6, 2.8e6, 17e3, 10.7, 0.09, 0.20, 0.417),
        "Wiki103": (111e6, 4.2e6, 29e3, 26.5, 0.01, 0.05, 0.266),
        "English Wikipedia": (2889e6, 120e6, 29e3, 24.1, 0.00, 0.00, 0.277),
        "CNN/Daily Mail": (294e6, 10.9e6, 28e3, 26.9, 0.04, 0.10, 0.283),
    }


def test_each_side_of_the_contrast_has_its_own_norm() -> None:
    feats = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    model = voken_lm.model_of(("voken_ctr",), vokens=5, feats=feats).eval()
    with torch.no_grad():
        model.norms[1].weight.zero_()  # all images alike: nothing to tell them by
        model.norms[0].weight.fill_(3)
    batch = voken_lm.batch_of([[2, 6, 9, 3]], [], [], [1, 2], [0, 4])
    assert model(batch)["voken_ctr"].item() == pytest.approx(math.log(5), rel=1e-6)


def test_equally_confident_regions_share_the_answer() -> None:
    regions = RegionSet(np.ones((3, 2)), np.ones((3, 4)), np.array([0.9, 0.9, 0.1]), None, 9, 9)
    hits = np.array([[True, False, True], [False, False, True], [True, True, False]])
    assert region_heads._confident(regions, hits).tolist() == [0.5, 0.0, 1.0]


def test_an_overlap_of_one_half_is_right() -> None:
    gold: Any = SimpleNamespace(spans=[(0, 1)], boxes=[np.array([[0.0, 0.0, 2.0, 1.0]])])
    boxes = np.array([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.99, 1.0]])
    regions = RegionSet(np.ones((2, 2)), boxes, np.ones(2), None, 9, 9)
    assert region_heads._hits([gold], [regions]).tolist() == [[True, False]]


@pytest.mark.parametrize("right", [[0, 1], [1, 0], [0, 0], [1, 1]])
def test_a_sentence_is_consistent_if_all_its_pairs_are_right(right: list[int]) -> None:
    ids = ["dev-1-0-0", "dev-1-1-0"]
    items = Items(ids, np.ones(2), np.array(right), lambda gold, predicted: 0.0)
    assert consistency(items) == float(all(right))


def test_a_matcher_drops_hidden_units_in_training() -> None:
    model = TokenImageMatcher(MatcherConfig(4, 3, hidden=8, dim=2, layers=1))
    rates = [part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)]
    assert rates == [0.3] * 3  # token, sentence, image
    feats = torch.ones(1, 3)
    model.train()
    drawn = {tuple(model.embed_images(feats)[0].tolist()) for _ in range(8)}
    assert len(drawn) > 1


def test_the_scale_of_info_nce_ends_at_100(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TokenImageMatcher(MatcherConfig(4, 3, "sentence", hidden=8, dim=2, layers=1))
    monkeypatch.setattr(matcher_module, "info_nce", lambda text, own, images, scale, *_: scale)
    fields = ("own", "keys", "holders", "weights")
    batch: Any = SimpleNamespace(
        hidden=torch.ones(2, 4), feats=torch.ones(2, 3), **dict.fromkeys(fields)
    )
    found = []
    for scale in (50.0, 1000.0):
        with torch.no_grad():
            model.log_scale.fill_(math.log(scale))
        found.append(model(batch)["info_nce"].item())
    assert found == pytest.approx([50, 100])


def test_the_match_of_text_and_image_is_learned_with_dropout() -> None:
    model, batch = visual.model_of().train(), visual.batch_of()
    seen: list[int] = []
    dropout = model.lm.bert.embeddings.dropout
    dropout.register_forward_hook(lambda module, given, out: seen.append(given[0].ndim))
    model(batch)
    assert seen.count(2) == 1  # (B, H): the pooled states


def test_a_token_as_relevant_as_asked_keeps_its_voken(tiny: Any, monkeypatch: Any) -> None:
    from tests.systems.vokenization.test_vokenize import bank_of
    from vgtools.systems.vokenization.vokenize import Vokenizer, open_matcher

    matcher = open_matcher(str(tiny / "run"))
    index = bank_of(matcher)
    half = torch.full((), 0.5)

    def search(queries: Any, k: int) -> Any:
        count = len(queries)
        return np.zeros((count, k), np.int32), np.full((count, k), float(half), np.float32)

    monkeypatch.setattr(index, "search", search)
    for least, voken in ((0.5, 0), (0.5001, -1)):
        found = Vokenizer(matcher, index, min_score=least)(["bam den"])
        assert (found.vokens == voken).all()
