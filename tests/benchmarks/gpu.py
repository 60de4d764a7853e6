"""What one GPU does with the work of vg: a table on stderr, and one JSON object on stdout.

Networks have the shape of BERT-base and random weights, texts and photos are invented: it needs no
file, no network and no package beyond torch, numpy, tokenizers, safetensors and transformers (for
the row of images also timm and Pillow), so that `python3 tests/benchmarks/gpu.py` runs in a bare
checkout. It ends within --minutes: parts that do not fit are named, not shortened.

On paper one H100 reaches a million tokens per second of `vokenize` in bfloat16, and steps 45 % of
its products. An H200 measured 880,000, and 24 %; `earlier.json` has its rows, which --keep updates.

- products: FLOP/s of the best matrix product in float32, TF32 and bfloat16;
- vokenize: tokens per second, and the seconds of host, encoder and search by themselves;
- search: exact search among 50,000 and 1,000,000 vectors, a sample compared with float64;
- steps: masked words and joint, also with --compile; XDBERT; fine-tuning; an epoch of a matcher;
- images: features of pixels that are in memory, and of photos that are decoded meanwhile.

`peak` is the share of the best product's rate in the same type, `idle` the share of the time in
which the device computes nothing: on a GPU by the profiler's kernels, on a CPU by the processor
time of all threads. `step_s` are seconds per step; `first_s` those of the first, with compilation.

    python3 tests/benchmarks/gpu.py [--device cpu] [--minutes 9] [--only PART …] [--output FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple


def stand_in() -> list[str]:
    """Put modules in the place of two that a bare machine lacks; return their names.

    They read and write JSON and zstd files, of which nothing here has one that matters.
    """
    missing = list[str]()
    try:
        import orjson  # noqa: F401 - only whether it is there
    except ImportError:
        missing.append("orjson")
        made = types.ModuleType("orjson")
        made.loads = json.loads  # type: ignore[attr-defined]
        made.dumps = lambda value, *_, **__: json.dumps(value).encode()  # type: ignore[attr-defined]
        made.JSONDecodeError = json.JSONDecodeError  # type: ignore[attr-defined]
        made.OPT_SERIALIZE_NUMPY = made.OPT_INDENT_2 = made.OPT_SORT_KEYS = 0  # type: ignore[attr-defined]
        sys.modules["orjson"] = made
    try:
        from compression import zstd
    except ImportError:
        try:
            from backports import zstd  # noqa: F401
        except ImportError:
            missing.append("zstd")
            empty = types.ModuleType("backports.zstd")
            empty.ZstdError = empty.open = OSError  # type: ignore[attr-defined]
            package = types.ModuleType("backports")
            package.zstd = empty  # type: ignore[attr-defined]
            sys.modules |= {"backports": package, "backports.zstd": empty}
    return missing


MISSING = stand_in()
sys.path.insert(0, str(Path(__file__).parents[2]))

import bench  # noqa: E402 - after the stand-ins
import numpy as np  # noqa: E402
import torch  # noqa: E402
import vokenize as vokens  # noqa: E402 - the benchmark next to this one
from run import EARLIER  # noqa: E402
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors  # noqa: E402
from torch import nn  # noqa: E402

from vgtools.models.clip import END, START, new_teacher  # noqa: E402
from vgtools.models.encoder import Encoder, as_encoder  # noqa: E402
from vgtools.models.masked_lm import new_lm  # noqa: E402
from vgtools.models.references import pick_device  # noqa: E402
from vgtools.retrieval.index import Index  # noqa: E402
from vgtools.systems.vokenization import matcher_training, voken_lm  # noqa: E402
from vgtools.systems.vokenization import vokenize as system  # noqa: E402
from vgtools.systems.xdbert import pairs as pairing  # noqa: E402
from vgtools.systems.xdbert.model import LOSSES, XDBert, XDBertConfig  # noqa: E402
from vgtools.tasks.finetune import LOSS, FineTuner  # noqa: E402
from vgtools.tasks.finetune import collate as collate_texts  # noqa: E402
from vgtools.tasks.sequences import TaskInputs  # noqa: E402
from vgtools.text.blocks import Corpus, Packed  # noqa: E402
from vgtools.text.tokens import Tokens, tokenize  # noqa: E402
from vgtools.training.loop import Batches, TrainConfig, train  # noqa: E402
from vgtools.training.steps import StepPlan, plan, prefetch, step_batches  # noqa: E402

Array = np.ndarray[Any, Any]
MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", START, END)
BLOCK = 128
DRAWN = 256  # photos; further ones are links to them
ADAM = {"lr": 1e-4, "clip": 1.0}


@dataclass(frozen=True)
class Sizes:
    """How large the work is."""

    shape: dict[str, int]  # of the encoder
    vocabulary: int
    square: int  # rows, width and columns of a product
    texts: int
    packs: tuple[int, ...]  # tokens per pack of the encoder
    images: int  # of the bank
    banks: tuple[int, ...]
    queries: int
    blocks: int  # of BLOCK tokens per step
    steps: int
    compiled: tuple[bool, ...]
    captions: int
    photos: int  # of which DRAWN differ


BERT_BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
SIZES = {
    "gpu": Sizes(
        BERT_BASE, 30_522, 8192, 16_384, (4096, 16_384, 65_536), 50_000, (50_000, 1_000_000),
        16_384, 256, 8, (False, True), 8192, 4096,
    ),
    "cpu": Sizes(
        BERT_BASE, 30_522, 1024, 48, (512, 1024), 50_000, (50_000, 200_000), 512, 2, 1, (False,),
        128, 16,
    ),
    "toy": Sizes(
        {**BERT_BASE, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2,
         "intermediate_size": 64},
        1000, 128, 32, (512,), 300, (300, 1000), 64, 2, 2, (False,), 32, 4,
    ),
}  # fmt: skip


class Bench(NamedTuple):
    """One run of this benchmark."""

    device: torch.device
    sizes: Sizes
    peaks: dict[torch.dtype, float]  # FLOP/s, filled by `products`
    rows: list[dict[str, Any]]

    @property
    def on_gpu(self) -> bool:
        """Whether the device works by itself, beside the processor."""
        return self.device.type == "cuda"

    def report(self, what: str, value: float, unit: str, **facts: float | None) -> None:
        """Keep a row, and print it, so that a run that is killed has said something."""
        numbers = {"value": value, **facts}
        rounded = {
            key: float(f"{number:.4g}") if isinstance(number, float) else number
            for key, number in numbers.items()
        }
        row = {"what": what, "unit": unit, **rounded}
        self.rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)

    def measured(
        self, work: Callable[[], object], less: Callable[[], object] | None = None
    ) -> tuple[float, dict[str, float | None]]:
        """Return the seconds of work, by the clock on the wall, with `idle` and, on a GPU, `GiB`.

        `less` is a part of the work, whose kernels are fewer for the profiler to list.
        """
        start = bench.clock()
        if not self.on_gpu:
            seconds = self.seconds(work)
            return seconds, {"idle": self._rest(bench.clock() - start, seconds)}
        torch.cuda.reset_peak_memory_stats(self.device)
        seconds = self.seconds(work)
        held = torch.cuda.max_memory_allocated(self.device) / 2**30
        return seconds, {"idle": self._idle(less or work), "GiB": held}

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the seconds of work, by the clock on the wall, to its last kernel."""
        self._wait()
        start = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def _rest(self, busy: float, seconds: float) -> float:
        return max(0.0, 1 - busy / seconds / torch.get_num_threads())

    def _idle(self, work: Callable[[], object]) -> float | None:
        """Return the share of the time without a kernel; None where there is no profiler."""
        from torch.profiler import ProfilerActivity, profile

        try:
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                seconds = self.seconds(work)
            spans = sorted(
                (event.time_range.start, event.time_range.end)
                for event in profiler.events() or ()
                if event.device_type == torch.autograd.DeviceType.CUDA
                and not event.name.startswith("Mem")  # copies are no computation
            )
        except RuntimeError:  # a driver without the profiler's library
            return None
        busy = 0.0
        until = 0.0
        for start, end in spans:  # kernels of several streams overlap
            busy += max(0.0, end - max(start, until))
            until = max(until, end)
        return max(0.0, 1 - busy / 1e6 / seconds) if spans else None

    def dtypes(self) -> dict[str, torch.dtype]:
        """Return the types worth measuring: a processor may only emulate bfloat16."""
        found = {"float32": torch.float32}
        if self.on_gpu or torch.cpu._is_avx512_bf16_supported():
            found["bfloat16"] = torch.bfloat16
        return found


# -------------------------------------------------------------------------------- invented models


def make_tokenizer() -> Tokenizer:
    """Return a WordPiece tokenizer that knows the words of the invented text."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = [*MARKS, *dict.fromkeys(bench.COMMON), *letters, *("##" + x for x in letters)]
    known = {word: i for i, word in enumerate(dict.fromkeys(vocabulary))}
    tokenizer = Tokenizer(models.WordPiece(known, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(MARKS))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def new_encoder(run: Bench) -> Encoder:
    """Return a masked language model with random weights."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    lm = new_lm({"model_type": "bert", **run.sizes.shape}, tokenizer)
    lm.resize_token_embeddings(run.sizes.vocabulary, mean_resizing=False)
    return as_encoder(lm.to(run.device), tokenizer, "random")


def frozen(run: Bench, dtype: torch.dtype) -> Encoder:
    """Return an encoder to read texts with."""
    encoder = new_encoder(run)
    return replace(encoder, model=encoder.model.base_model.eval().requires_grad_(False).to(dtype))


def flops_of_layers(run: Bench) -> float:
    """Return the FLOP of a token's forward pass through the layers, attention left out."""
    width, inner = run.sizes.shape["hidden_size"], run.sizes.shape["intermediate_size"]
    return 2.0 * run.sizes.shape["num_hidden_layers"] * (4 * width**2 + 2 * width * inner)


# ------------------------------------------------------------------------------------------- parts


def products(run: Bench) -> None:
    size = run.sizes.square
    rows = min(size, 16_384)
    width = run.sizes.shape["hidden_size"]
    shapes = ((size, size, size), (rows, width, 4 * width), (rows, width, width))
    ways = {"float32": (torch.float32, False), "bfloat16": (torch.bfloat16, False)}
    if run.on_gpu:
        ways["TF32"] = (torch.float32, True)
    for name, (dtype, short) in ways.items():
        torch.backends.cuda.matmul.allow_tf32 = short
        rates = bench.best_product(shapes, run.device, dtype, turns=20 if run.on_gpu else 3)
        torch.backends.cuda.matmul.allow_tf32 = False
        best = max(rates.values())
        if not short:
            run.peaks[dtype] = best
        each = {"x".join(map(str, shape)): rate / 1e12 for shape, rate in rates.items()}
        run.report(f"product, {name}", best / 1e12, "TFLOP/s", **each)


def vokenize(run: Bench) -> None:
    texts = bench.sentences(None, run.sizes.texts)
    for name, dtype in run.dtypes().items():
        matcher = vokens.matcher_of(frozen(run, dtype), run.device)
        bank = vokens.bank_of(matcher, run.sizes.images)
        index = Index("vg.faiss", [], {"dim": 64}, None, bank)
        # The slow type is measured with the command's own size alone.
        sizes = run.sizes.packs if name == "bfloat16" else (max(run.sizes.packs[:2]),)
        for pack in sizes:
            packs(run, name, system.Vokenizer(matcher, index, pack=pack), texts)


def packs(run: Bench, name: str, worker: system.Vokenizer, texts: list[str]) -> None:
    """Report the vokens of texts by one size of the encoder's packs."""
    encoder = worker.matcher.encoder
    tokens = worker.tokenize(texts)
    count = len(tokens.ids)
    half = partial(vokens.ours, worker, texts[: len(texts) // 2], packed=True)

    @torch.inference_mode()
    def encode() -> torch.Tensor:
        return torch.cat([part.vectors for part in worker.embed(tokens)])

    half()  # warms up
    seconds, others = run.measured(partial(vokens.ours, worker, texts, packed=True), half)
    flops = vokens.flops_a_token(encoder, run.sizes.images, count / len(texts))
    queries = encode()
    run.report(
        f"vokenize, {name}, packs of {worker.encoder.pack:,}",
        count / seconds,
        "tokens/s",
        peak=count / seconds * flops / run.peaks[encoder.model.dtype],
        host_s=run.seconds(lambda: worker.tokenize(texts)),
        encoder_s=run.seconds(encode),
        search_s=run.seconds(lambda: worker._search(queries)),
        whole_s=seconds,
        **others,
    )


def search(run: Bench) -> None:
    from vgtools.retrieval.device import DeviceBank

    def unit(count: int, seed: int) -> Array:
        vectors = np.random.default_rng(seed).standard_normal((count, 64), dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    queries = torch.from_numpy(unit(run.sizes.queries, 0)).to(run.device)
    for count in run.sizes.banks:
        bank = unit(count, 1)
        searched = DeviceBank(bank, run.device)
        sample = queries[:64].double()
        parts = torch.from_numpy(bank).split(1 << 16)
        exact = torch.cat([sample @ part.to(run.device).double().T for part in parts], dim=1)
        for k in (1, 16):
            found = searched.search(queries, k, dtype=np.float64)
            rows = torch.from_numpy(found.rows[:64]).to(run.device).long()
            best = exact.topk(k, dim=1)
            # Rows whose float64 products are equal to the last digit may change places.
            equal = (exact.gather(1, rows) - best.values).abs() <= 64 * 2.0**-52
            work = partial(searched.search, queries, k)
            seconds, others = run.measured(work)
            run.report(
                f"search, {count:,} vectors, k {k}",
                len(queries) / seconds,
                "queries/s",
                as_float64=float(equal.double().mean()),
                rows=float((rows == best.indices).double().mean()),
                **others,
            )


def steps(
    run: Bench,
    what: str,
    model: nn.Module,
    batches: Batches,
    weights: dict[str, float],
    tokens: int,
    flops: float,
    dtype: torch.dtype,
) -> None:
    """Report steps of the training loop, of some tokens and forward FLOP each."""
    number = run.sizes.steps
    config = TrainConfig(epochs=1, steps=10**6, log_every=1, **ADAM)
    records = train(model, batches, config, weights=weights)

    def some() -> None:
        for _ in range(number):
            next(records)

    start = time.perf_counter()
    next(records)  # compiles, and fills the moments of the optimiser
    first = time.perf_counter() - start
    next(records)
    total, others = run.measured(some)
    seconds = total / number
    share = 3 * flops / seconds / run.peaks[dtype]  # backward takes two of each product
    rate = tokens / seconds
    run.report(what, rate, "tokens/s", peak=share, step_s=seconds, first_s=first, **others)
    records.close()


def lm_steps(run: Bench, losses: tuple[str, ...]) -> None:
    """Report steps of `vg pretrain lm`."""
    sizes = run.sizes
    blocks = 4 * sizes.blocks
    rng = np.random.default_rng(0)
    size = (BLOCK - 2) * blocks
    drawn = [rng.integers(len(MARKS), sizes.vocabulary, size), rng.integers(0, sizes.images, size)]
    corpus = Corpus([Packed("drawn", np.column_stack(drawn), np.array([size]))], BLOCK - 2)
    recipe = voken_lm.VokenMasking((2,), (3,), 4, 0, sizes.vocabulary, sizes.images)
    name = "joint" if len(losses) > 1 else "mlm"
    width = sizes.shape["hidden_size"]
    tokens = BLOCK * sizes.blocks
    flops = tokens * flops_of_layers(run) + 0.15 * tokens * 2 * width * (width + sizes.vocabulary)
    if len(losses) > 1:
        flops += tokens * 2 * width * (width + sizes.images)
    for kind, dtype in run.dtypes().items():
        for compiled in sizes.compiled if dtype == torch.bfloat16 or not run.on_gpu else (False,):
            # Epochs without end: the loop ends when nobody asks for another record.
            epochs = StepPlan(per_epoch=4, accumulate=1, steps=10**6, epochs=10**6, stop=10**6)
            lm = new_encoder(run).model.train()
            model = voken_lm.VisuallySupervisedLM(
                lm, voken_lm.VokenLMConfig(losses, sizes.images), None, dtype
            ).to(run.device)
            if compiled:
                model.lm.base_model.compile()
            data = endless(voken_lm.make_batches(corpus, recipe, epochs, run.device))
            what = f"{name} step, {kind}{', compiled' if compiled else ''}"
            steps(run, what, model, data, dict.fromkeys(losses, 1.0), tokens, flops, dtype)


def endless(batches: Batches) -> Batches:
    """Return all epochs as one."""

    def all_epochs(_: int, first: int) -> Iterator[Any]:
        for epoch in range(10**6):
            yield from batches(epoch, 0)

    return all_epochs


def xdbert_steps(run: Bench) -> None:
    """Report steps of `vg pretrain xdbert`, with a teacher of the student's shape."""
    sizes = run.sizes
    rows = sizes.blocks
    for kind, dtype in run.dtypes().items():
        student = new_encoder(run)
        shape = {
            **sizes.shape,
            "projection_dim": sizes.shape["hidden_size"],
            "max_position_embeddings": 77,
        }
        teacher = new_teacher(shape, make_tokenizer(), "random")
        found = tokenize(student.tokenizer, bench.sentences(None, rows * BLOCK // 4))
        ids = np.column_stack([found.ids, np.full(len(found.ids), -1)])
        corpus = Corpus([Packed("text", ids, found.starts[1:])], BLOCK - 2)
        recipe = pairing.PairMasking.of(student.tokenizer)
        texts = pairing.TeacherText.of(student, teacher, BLOCK)
        model = XDBert(student.model, teacher.model, XDBertConfig(), dtype=dtype)
        model = model.to(run.device).train()

        def build(
            numbers: Array, epoch: int, parts: int, corpus: Corpus = corpus,
            recipe: Any = recipe, texts: Any = texts,
        ) -> list[Any]:  # fmt: skip
            others = pairing.partners(numbers, len(corpus), recipe, epoch)
            return pairing.collate(corpus, numbers, others, recipe, texts, epoch, parts, run.device)

        whole = plan(len(corpus), rows, rows, steps=10**6)
        batches = endless(step_batches(len(corpus), 0, whole, build))
        tokens = rows * BLOCK
        # Student, teacher and both streams of the layers over them, whose feed-forward comes
        # after two attentions; the teacher's blocks have about as many tokens.
        width, inner = sizes.shape["hidden_size"], sizes.shape["intermediate_size"]
        over = 2 * 2 * 2 * (8 * width**2 + 2 * width * inner)
        heads = 0.15 * 2 * width * (width + sizes.vocabulary)
        flops = tokens * (2 * flops_of_layers(run) + over + heads)
        weights = dict.fromkeys(LOSSES, 1.0)
        steps(run, f"xdbert step, {kind}", model, batches, weights, tokens, flops, dtype)


def finetuning(run: Bench) -> None:
    """Report steps on batches of 32 pairs as long as RTE's."""
    from transformers import BertConfig, BertForSequenceClassification

    rng = np.random.default_rng(0)
    count = 32 * 8
    lengths = np.clip(55 * np.exp(0.6 * rng.standard_normal(count)), 3, 128).astype(int)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(len(MARKS), run.sizes.vocabulary, int(starts[-1])).astype(np.int32)
    inputs = TaskInputs(ids, starts, lengths, 1, np.arange(count), rng.integers(0, 2, count))
    order = np.argsort(lengths, kind="stable")
    size = 32 if run.on_gpu else 4
    units = np.array_split(order, count // size)
    for kind, dtype in run.dtypes().items():
        config = BertConfig(**run.sizes.shape, vocab_size=run.sizes.vocabulary)
        net = FineTuner(BertForSequenceClassification(config), "classify", dtype).to(run.device)

        def batches(_: int, first: int, net: FineTuner = net) -> Iterator[Any]:
            makes = (
                collate_texts(inputs, part, net.pad, net.segments, run.device)
                for _ in range(10**6)
                for part in units
            )
            return prefetch(makes)

        mean = float(lengths.mean()) * size
        flops = mean * flops_of_layers(run)
        steps(run, f"fine-tuning step, {kind}", net, batches, {LOSS: 1.0}, int(mean), flops, dtype)


def matcher_epoch(run: Bench) -> None:
    """Report an epoch of a matcher, and the states of the encoder that it learns from."""
    sizes = run.sizes
    texts = bench.sentences(None, sizes.captions)
    encoder = frozen(run, torch.float32)
    tokens: Tokens = tokenize(encoder.tokenizer, texts)
    images = np.arange(len(texts)) // 4
    keys = tokens.ids.astype(np.int64)  # each word is its own stem
    known = np.arange(int(keys.max()) + 1).astype(str)
    holds = matcher_training._holds(np.repeat(images, np.diff(tokens.starts)), keys, tokens.starts)
    captions = matcher_training.MatcherCaptions(
        images, tokens, np.ones(len(keys), bool), keys, holds, np.arange(len(texts)), known
    )
    packed = system.PackedEncoder(encoder, 4)
    made = list[Any]()
    states_s = run.seconds(
        lambda: made.append(matcher_training.HiddenStates(packed, tokens, 1 << 36))
    )
    feats = np.random.default_rng(0).standard_normal((int(images[-1]) + 1, 2048)).astype("f4")
    config = matcher_training.MatcherConfig(
        text_width=4 * encoder.width, image_width=2048, sentence=False, root=False
    )
    torch.manual_seed(0)
    matcher = system.TokenImageMatcher(config).to(run.device)
    batches = matcher_training.make_batches(
        captions, made[0], feats, config, min(256, sizes.captions // 2), 0, run.device
    )
    optimise = TrainConfig(epochs=10**6, steps=10**6, log_every=10**6, lr=1e-3)
    records = train(matcher, batches, optimise, weights=matcher.losses)
    next(records)  # warms up
    seconds, others = run.measured(lambda: next(records))
    rate = len(keys) / seconds
    run.report("matcher epoch", rate, "tokens/s", epoch_s=seconds, states_s=states_s, **others)
    records.close()


def images(run: Bench) -> None:
    import timm
    from images import draw_photos
    from timm.data import resolve_data_config

    from vgtools.images.extract import extract
    from vgtools.images.featurizer import Featurizer
    from vgtools.images.sources import open_source

    with tempfile.TemporaryDirectory() as folder:
        photos = run.sizes.photos
        draw_photos(Path(folder), min(photos, DRAWN))
        for number in range(DRAWN, photos):
            Path(folder, f"{number}.jpg").hardlink_to(Path(folder, f"{number % DRAWN}.jpg"))
        for kind, dtype in run.dtypes().items():
            torch.manual_seed(0)
            net = timm.create_model("resnet50" if run.sizes.square > 128 else "resnet10t")
            preprocessing = resolve_data_config({}, model=net)
            net = net.eval().requires_grad_(False).to(run.device, dtype)
            size = 64 if run.on_gpu else 8
            maker = Featurizer(net, preprocessing, batch_size=size)
            pixels = np.random.default_rng(0).integers(0, 255, (size, *maker.input_shape), np.uint8)

            def preloaded(maker: Featurizer = maker, pixels: Array = pixels) -> None:
                for _ in range(photos // len(pixels) or 1):
                    maker.features(pixels)

            def decoded(maker: Featurizer = maker) -> None:
                for _ in extract(open_source(folder), maker):
                    pass

            preloaded()
            count = max(1, photos // size) * size
            for name, work, number in (
                ("preloaded", preloaded, count),
                ("decoded", decoded, photos),
            ):
                seconds, others = run.measured(work)
                run.report(f"images, {kind}, {name}", number / seconds, "images/s", **others)


PARTS: dict[str, Callable[[Bench], None]] = {
    "products": products,
    "search": search,
    "vokenize": vokenize,
    "mlm": partial(lm_steps, losses=("mlm",)),
    "joint": partial(lm_steps, losses=("mlm", "voken_cls")),
    "finetune": finetuning,
    "matcher": matcher_epoch,
    "images": images,
    "xdbert": xdbert_steps,
}


# ------------------------------------------------------------------------------------------ output


def table(rows: list[dict[str, Any]], earlier: dict[str, float], out: Any) -> None:
    """Print the rows beside the earlier values of this GPU; what a row lacks stays empty."""
    names = ["what", "value", "earlier", "unit", "peak", "idle", "GiB", "host_s", "encoder_s",
             "search_s", "step_s", "as_float64"]  # fmt: skip
    shown = ({**row, "earlier": earlier.get(f"gpu: {row['what']}")} for row in rows)
    lines = [names, *([cell(row.get(name)) for name in names] for row in shown)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    for line in lines:
        text = "  ".join(x.ljust(width) for x, width in zip(line, widths, strict=True))
        print(text.rstrip(), file=out)


def cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if isinstance(value, float) and value >= 1000 else str(value)


def pick(name: str | None) -> torch.device:
    """Return the device; without a GPU only a named one."""
    if name is None and not torch.cuda.is_available():
        why = "no CUDA device here; --device cpu measures small sizes on the processor (3 minutes)"
        sys.exit(f"tests/benchmarks/gpu.py: {why}")
    return pick_device(name or "cuda")


def main() -> None:
    begin = time.monotonic()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", help="cuda:1, or cpu for small sizes; the GPU by default")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="parts that may end later are left out"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, help="products always runs")
    parser.add_argument("--sizes", choices=SIZES, help="gpu or cpu, by the device; toy for a test")
    parser.add_argument("--keep", action="store_true", help="store values in earlier.json")
    parser.add_argument("--output", help="also write the JSON to this file, after every part")
    given = parser.parse_args()
    device = pick(given.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    sizes = given.sizes or ("gpu" if device.type == "cuda" else "cpu")
    run = Bench(device, SIZES[sizes], {}, [])
    facts = bench.machine() | {"clock": "wall", "device": name, "sizes": sizes}
    facts |= {"torch": torch.__version__, "cuda": torch.version.cuda, "stand_ins": MISSING}
    left_out = dict[str, str]()
    result = {**facts, "rows": run.rows, "left_out": left_out}
    longest = 0.0  # seconds of a part so far
    for part, measure in PARTS.items():
        if given.only and part not in (*given.only, "products"):
            continue
        passed = time.monotonic() - begin
        if passed + longest > 60 * given.minutes:
            left_out[part] = f"would start after {passed:.0f} s of {60 * given.minutes:.0f}"
            continue
        # Records of training and libraries' notes would mix with the JSON.
        with contextlib.redirect_stdout(sys.stderr):
            try:
                measure(run)
            except Exception as error:  # the other parts are still worth measuring
                traceback.print_exc()
                left_out[part] = f"{type(error).__name__}: {error}"[:300]
        if run.on_gpu:
            torch.cuda.empty_cache()
        longest = max(longest, time.monotonic() - begin - passed)
        result["seconds"] = round(time.monotonic() - begin)
        if given.output:
            Path(given.output).write_text(json.dumps(result) + "\n")
    known = json.loads(EARLIER.read_text())
    earlier = known.setdefault(name, {})
    table(run.rows, earlier, sys.stderr)
    if given.keep:
        earlier |= {f"gpu: {row['what']}": row["value"] for row in run.rows}
        EARLIER.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    for part, why in left_out.items():
        print(f"left out: {part}: {why}", file=sys.stderr)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
