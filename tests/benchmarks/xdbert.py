"""`vg pretrain xdbert` and `vg finetune --full`: what the teacher costs, as ratios within one run.

- step: forward, backward and AdamW of all three losses, with a teacher that learns and a frozen
  one, against a masked language model of the same student on the same blocks;
- loss: `clip_token` in chunks against the whole table of logits, time and memory added;
- builder: steps on batches made in a thread, teacher's text and all, against the same batches made
  before;
- full: a step of `--full` on pairs of RTE's length against the student's own.

    python tests/benchmarks/xdbert.py [--rounds 3] [--rows 8] [--block 128] [--base]

--base takes BERT base and the tower of ViT-B/32, with random weights, in place of `builtin:minilm`
and a tower of two layers; `--base --block 512` is the paper's size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import bench
import numpy as np
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.tiny.tasks import learner_of
from vgtools.models.clip import SHAPES, new_teacher
from vgtools.models.encoder import Encoder, as_encoder, load_masked_lm
from vgtools.models.masked_lm import linear_cross_entropy, mlm_hidden, new_lm
from vgtools.models.references import load_tokenizer
from vgtools.models.runs import Run
from vgtools.systems.xdbert.model import (
    Shape,
    XDBert,
    XDBertBatch,
    XDBertConfig,
    XDBertCrossModal,
    XDBertRun,
)
from vgtools.systems.xdbert.pairs import PairMasking, TeacherText, collate, partners
from vgtools.systems.xdbert.tasks import FullLearner, FullTuner, with_blocks
from vgtools.tasks.dispatch import encode
from vgtools.tasks.examples import Example
from vgtools.tasks.finetune import FineTuner
from vgtools.tasks.finetune import collate as collate_texts
from vgtools.tasks.table import find_task
from vgtools.text.blocks import Corpus, Packed
from vgtools.text.tokens import tokenize
from vgtools.training.loop import TrainConfig, make_optimizer
from vgtools.training.steps import prefetch

SETTINGS = TrainConfig(1, 1)
ROWS, WIDTH, TOKENS = 1500, 512, 49_408  # of the loss


def models(base: bool) -> tuple[Encoder, Encoder]:
    """Return a new student and a new teacher."""
    torch.manual_seed(0)
    student = load_masked_lm("builtin:minilm")
    if base:
        lm = new_lm({"model_type": "bert"}, student.tokenizer)
        student = as_encoder(lm, student.tokenizer, "bert")
    shape = SHAPES["clip-text" if base else "clip-text-small"]
    return student, new_teacher(shape, load_tokenizer("builtin:clip-bpe"), "builtin:clip-bpe")


def stepper(model: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """Return one optimiser step."""
    optimizer = make_optimizer(model, SETTINGS)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def steps(base: bool, rows: int, block: int, rounds: int, facts: dict[str, Any]) -> None:
    """Report the ratios of steps, and of the batch builder to a step."""
    student, teacher = models(base)
    found = tokenize(student.tokenizer, bench.sentences(None, rows * block // 8))
    pairs = np.column_stack([found.ids, np.full(len(found.ids), -1)])
    corpus = Corpus([Packed("text", pairs, found.starts[1:])], block - 2)
    recipe = PairMasking.of(student.tokenizer)
    texts = TeacherText.of(student, teacher, block)

    def batch(number: int) -> XDBertBatch:
        numbers = np.arange(rows) + number % (len(corpus) - rows)
        others = partners(numbers, len(corpus), recipe, 0)
        return collate(corpus, numbers, others, recipe, texts, 0)[0]

    first = batch(0)
    lm = models(base)[0].model.train()

    def mlm() -> torch.Tensor:
        states = lm.base_model(first.ids, attention_mask=first.attention).last_hidden_state
        hidden = mlm_hidden(lm)(states.flatten(0, 1)[first.masked])
        decoder = lm.get_output_embeddings()
        loss = linear_cross_entropy(hidden, decoder.weight, decoder.bias, first.tokens)
        return loss / first.token_count

    ways = {"mlm": stepper(lm, mlm)}
    made = {}
    for frozen in (False, True):
        one, other = models(base)
        model = XDBert(one.model, other.model, XDBertConfig(), freeze_teacher=frozen).train()
        made[frozen] = model
        loss = partial(lambda m: torch.stack([*m(first).values()]).sum(), model)
        ways["frozen" if frozen else "learning"] = stepper(model, loss)
    times = bench.in_turns(ways, rounds)
    sizes = {"rows": rows, "block": block, "base": base}
    for name, target in (("learning", "<= 2.0"), ("frozen", "<= 1.7")):
        ratio = times[name] / times["mlm"]
        seconds = times[name]
        what = f"{name} teacher to masked words alone"
        bench.report("step", what, ratio, target, seconds=seconds, **sizes, **facts)

    model = made[False]
    optimizer = make_optimizer(model, SETTINGS)

    def train(batches: Iterable[XDBertBatch]) -> None:
        for part in batches:
            torch.stack([*model(part).values()]).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    ready = [batch(number) for number in range(3)]
    both = {
        "ready": partial(train, ready),
        "made": lambda: train(prefetch(batch(number) for number in range(3))),
    }
    times = bench.in_turns(both, rounds)
    ratio = times["ready"] / times["made"]
    bench.report("builder", "speed beside a thread that makes batches", ratio, ">= 0.95", **facts)


def loss_of(way: str) -> None:
    """Print seconds and the MiB that a loss adds, forward and backward."""
    torch.manual_seed(0)
    rows = torch.randn(ROWS, WIDTH, requires_grad=True)
    table = (0.02 * torch.randn(TOKENS, WIDTH)).requires_grad_()  # as embeddings are drawn
    bias = torch.zeros(TOKENS, requires_grad=True)
    target = torch.randint(TOKENS, (ROWS,))
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    base = peak_kib()
    seconds = []
    for _ in range(4):  # the first one touches new memory
        start = bench.clock()
        if way == "chunks":
            linear_cross_entropy(rows, table, bias, target).backward()
        else:
            F.cross_entropy(F.linear(rows, table, bias), target, reduction="sum").backward()
        seconds.append(bench.clock() - start)
    print(json.dumps({"seconds": min(seconds), "mib": (peak_kib() - base) / 1024}))


def peak_kib() -> int:
    """Return the most memory that this process has held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def losses(facts: dict[str, Any]) -> None:
    found = {}
    for way in ("chunks", "table"):
        command = [sys.executable, __file__, "--loss", way]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[way] = json.loads(done.stdout)
    for name, target in (("mib", "<= 0.45"), ("seconds", "<= 1.1")):
        ratio = found["chunks"][name] / found["table"][name]
        bench.report("loss", f"clip_token in chunks, {name}", ratio, target, **found, **facts)


def full(base: bool, rows: int, rounds: int, facts: dict[str, Any]) -> None:
    """Report a step of the full model to the student's, on pairs of 50 and 12 words or so."""
    task = find_task("rte")
    lines = bench.sentences(None, 4 * rows)
    examples = [
        Example(str(i), f"{lines[2 * i]} {lines[2 * i + 1]}", lines[-1 - i][:60], i % 2)
        for i in range(rows)
    ]
    student, teacher = models(base)
    text = encode(task, examples, student.tokenizer, max_length=128, segments=True)
    inputs = with_blocks(text, examples, teacher, 128)
    from transformers import AutoModelForSequenceClassification

    config = student.model.config
    net = AutoModelForSequenceClassification.from_config(config).train()
    tuner = FineTuner(net, task.kind)
    units = np.arange(rows)
    plain = collate_texts(text, units, tuner.pad, tuner.segments)
    one, other = models(base)
    cross = XDBertCrossModal(Shape.of(config, other.model.config), 2)
    bare = XDBertRun(Run(Path(), {}, {}, ""), XDBertConfig(), as_bare(one), other, cross)
    whole = FullTuner(bare, task).train()
    batch = learner_of(FullLearner, "rte", "").collate(whole, inputs, units)
    ways = {
        "student": stepper(tuner, lambda: tuner(plain)["task"]),
        "full": stepper(whole, lambda: whole(batch)["task"]),
    }
    times = bench.in_turns(ways, rounds)
    ratio = times["full"] / times["student"]
    bench.report("full", "step to the student's, RTE", ratio, "<= 2.0", base=base, **facts)


def as_bare(student: Encoder) -> Encoder:
    """Return a student without its head."""
    return as_encoder(student.model.base_model, student.tokenizer, student.ref)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--base", action="store_true")
    parser.add_argument("--loss", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.loss:
        loss_of(given.loss)
        return
    facts = bench.machine()
    steps(given.base, given.rows, given.block, given.rounds, facts)
    losses(facts)
    full(given.base, given.rows, given.rounds, facts)


if __name__ == "__main__":
    main()
