"""`vg pretrain`: text and vokens become a language model."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgtools.commands.options import Device, Offline, Quiet, Restart, Seed, choice, run_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from vgtools.blocks import Packed
    from vgtools.checkpoint import Encoder
    from vgtools.io import Features, Stop
    from vgtools.train import TrainingRun

Flag = typer.Option


def pretrain(
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUT...", help="Voken rows or text: .jsonl, .npy, .txt, .gz, .zst, -.")
    ],
    output: Annotated[str, Flag("--output", "-o", help="Run directory; the same command again resumes it.")],
    shape: Annotated[
        str | None, Flag(help="From scratch: bert-base, bert-small, roberta-base, roberta-small, or a config.json.")
    ] = None,
    tokenizer: Annotated[
        str | None, Flag("--tokenizer", "-t", help="With --shape: hub name, directory or builtin:NAME.")
    ] = None,
    encoder: Annotated[str | None, Flag("--encoder", "-e", help="Train this one further: hub name, directory, vg run.")] = None,
    weight: Annotated[
        list[str] | None,
        Flag(help="NAME=NUMBER, repeatable: mlm, voken_cls, voken_reg, voken_ctr [mlm=1, with vokens voken_cls=1; 0 is off]."),
    ] = None,
    voken_tokens: Annotated[str, Flag(help="Tokens whose voken is learned: all, masked or unmasked.")] = "all",
    label: Annotated[str, Flag(help="all, or first: the voken of each sentence's first token only (table 5).")] = "all",
    control: Annotated[str | None, Flag(help="In place of the vokens: random, shuffle, reverse or tokens (table 6).")] = None,
    vokens: Annotated[int | None, Flag(min=1, help="Images of the bank [from the manifest, else the largest voken].")] = None,
    feats: Annotated[str | None, Flag(help="Features of the bank, X.npy: for voken_reg and voken_ctr.")] = None,
    shared_head: Annotated[bool, Flag(help="Vokens share the hidden layer of the masked language model's head.")] = False,
    valid: Annotated[list[str] | None, Flag(help="Evaluate on this file, masks fixed; repeatable.")] = None,
    pack: Annotated[str, Flag(help="stream: blocks cross sentences; document: none crosses an empty row.")] = "stream",
    block: Annotated[int, Flag(min=8, help="Tokens a block, special tokens counted.")] = 128,
    epochs: Annotated[int | None, Flag(min=1, help="Passes over the input [40, unless --steps].")] = None,
    steps: Annotated[int | None, Flag(min=1, help="Steps in all, in place of --epochs.")] = None,
    batch_size: Annotated[int, Flag(min=1, help="Most blocks a step, over all processes.")] = 256,
    micro_batch: Annotated[int, Flag(min=1, help="Most blocks a process holds at a time; more of them make a step.")] = 256,
    lr: Annotated[float, Flag(min=0, help="Highest learning rate of AdamW.")] = 2e-4,
    warmup: Annotated[
        float, Flag(min=0, help="Steps of warm-up; below 1, their share (paper: 5000 of 200000, 10000 of 160000).")
    ] = 0.05,
    schedule: Annotated[str, Flag(help="linear, cosine or constant.")] = "linear",
    weight_decay: Annotated[float, Flag(min=0, help="On matrices; not on biases and norms.")] = 0.01,
    clip: Annotated[float, Flag(min=0, help="Longest gradient; 0 does not clip.")] = 1.0,
    dtype: Annotated[str, Flag(help="float32, or bfloat16: products only, weights stay float32.")] = "float32",
    gradient_checkpointing: Annotated[bool, Flag("--gradient-checkpointing", help="Less memory, more time.")] = False,
    compiled: Annotated[bool, Flag("--compile", help="Compile the encoder first.")] = False,
    log_every: Annotated[int, Flag(min=1, help="Steps between records.")] = 50,
    eval_every: Annotated[int | None, Flag(min=1, help="Steps between evaluations [an epoch].")] = None,
    checkpoint_steps: Annotated[int | None, Flag(min=1, help="Steps between checkpoints, beside --checkpoint-minutes.")] = None,
    checkpoint_minutes: Annotated[float, Flag(min=0, help="Minutes between checkpoints.")] = 10.0,
    cache: Annotated[str | None, Flag(help="Keep packed inputs in this folder, for other runs [RUN.tokens, removed].")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    offline: Offline = False,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Pretrain a masked language model on text, with vokens as further labels of its tokens.

    Reads voken rows (of vg vokenize or vg revokenize, for the encoder's tokenizer) or plain text, cut into blocks; prints one
    record each --log-every steps: losses, and with --valid those on it and the perplexity. Sentences follow one another in a
    block; an empty row ends a document.

    The run directory holds encoder/ (a BertForMaskedLM or RobertaForMaskedLM with its tokenizer, as transformers saves it),
    voken_lm.safetensors (the voken head), run.json and metrics.jsonl.

    torchrun and accelerate launch start it on several GPUs or machines: a step is the same however many processes share it.

    Examples:

        vg pretrain vokens.jsonl --shape bert-small --tokenizer google-bert/bert-base-uncased -o run

        vg pretrain wiki.txt --shape bert-small -t google-bert/bert-base-uncased --valid valid.txt -o run.mlm

        vg pretrain vokens.npy --encoder run.mlm --weight voken_cls=1 --steps 1000 --dtype bfloat16 -o run.vokens

        torchrun --nproc-per-node 4 -m vgtools pretrain vokens.npy --shape bert-base -t google-bert/bert-base-uncased -o run
    """
    for value, allowed, flag in (
        (voken_tokens, ("all", "masked", "unmasked"), "--voken-tokens"),
        (label, ("all", "first"), "--label"),
        (pack, ("stream", "document"), "--pack"),
        (schedule, ("linear", "cosine", "constant"), "--schedule"),
        (dtype, ("float32", "bfloat16"), "--dtype"),
        (control or "random", ("random", "shuffle", "reverse", "tokens"), "--control"),
    ):
        choice(value, allowed, flag)
    if (shape is None) == (encoder is None):
        raise typer.BadParameter(
            "give one of them: --shape starts from scratch, --encoder goes on", param_hint="--shape/--encoder"
        )
    if (shape is None) != (tokenizer is None):
        raise typer.BadParameter("belongs to --shape; with --encoder it is the encoder's own", param_hint="--tokenizer")
    if steps is not None and epochs is not None:
        raise typer.BadParameter("give --epochs or --steps, not both", param_hint="--steps")
    if [*inputs, *(valid or ()), output].count("-") > 1 or output == "-":
        raise typer.BadParameter("only one input can come from a pipe, and a run is a directory", param_hint="-")
    from vgtools import io, parallel
    from vgtools.checkpoint import pick_device, tokenizer_fingerprint
    from vgtools.train import TrainingRun

    weights = _weights(weight)
    bank = _features(feats, weights)
    first = parallel.rank() == 0
    if parallel.world() > 1 and "-" in [*inputs, *(valid or ())]:
        raise typer.BadParameter("several processes cannot read one pipe; write a file first", param_hint="-")
    where = pick_device(parallel.device_name(device))
    if where.type == "cuda":
        import torch

        torch.cuda.set_device(where)
    text = _encoder(shape, tokenizer, encoder, seed, offline)
    folder = run_folder(output)
    kept = Path(cache) if cache is not None else folder.with_name(f"{folder.name}.tokens")
    with io.Stop() as stop, contextlib.ExitStack() as stack:
        stack.enter_context(parallel.joined(where.type == "cuda"))
        if first:
            stack.callback(io.Lock(folder).release)
        store = _Store(text, kept, quiet or not first)
        digests = [[store.digest(path) for path in paths] for paths in (inputs, valid or ())]
        if not weights:
            learned = control == "tokens" or any(map(store.has_vokens, inputs))
            weights = {"mlm": 1.0, "voken_cls": 1.0} if learned else {"mlm": 1.0}
        config = {
            "start": shape or text.fingerprint,
            "tokenizer": tokenizer_fingerprint(text.tokenizer),
            "weights": weights,
            "voken_tokens": voken_tokens,
            "label": label,
            "control": control,
            "vokens": vokens,
            "feats": bank and bank.manifest["files"],
            "shared_head": shared_head,
            "inputs": digests[0],
            "valid": digests[1],
            "pack": pack,
            "block": block,
            "epochs": epochs or (None if steps else 40),
            "steps": steps,
            "batch_size": batch_size,
            "micro_batch": micro_batch,
            "lr": lr,
            "warmup": warmup,
            "schedule": schedule,
            "weight_decay": weight_decay,
            "clip": clip,
            "dtype": dtype,
            "log_every": log_every,
            "eval_every": eval_every,
            "seed": seed,
            "device": where.type,
            "processes": parallel.world(),
        }
        with parallel.in_turn():
            run = TrainingRun(folder, "voken_lm", config, restart and first)
        for record in run.records if first else ():
            sys.stdout.buffer.write(io.dumps(record))
        if not run.complete:
            with parallel.in_turn():
                data = [[store.open(path) for path in paths] for paths in (inputs, valid or ())]
            switches = {"checkpointing": gradient_checkpointing, "compiled": compiled}
            every = {"steps": checkpoint_steps, "seconds": 60 * checkpoint_minutes}
            _fit(run, text, data, bank, where, stop, quiet or not first, switches, every)
        if cache is None and first:
            shutil.rmtree(kept, ignore_errors=True)


def _weights(given: list[str] | None) -> dict[str, float]:
    """Return the weight of each loss by name, those of 0 left out; nothing if none is given."""
    found: dict[str, float] = {}
    for item in given or ():
        name, _, number = item.partition("=")
        choice(name, ("mlm", "voken_cls", "voken_reg", "voken_ctr"), "--weight")
        try:
            found[name] = float(number)
        except ValueError:
            raise typer.BadParameter(f"{item!r}: NAME=NUMBER was wanted, for example mlm=1.0", param_hint="--weight") from None
    if not all(0 <= value < float("inf") for value in found.values()) or (given and not any(found.values())):
        raise typer.BadParameter("weights are 0 or more, and one of them is more", param_hint="--weight")
    return {name: value for name, value in found.items() if value}


def _features(path: str | None, weights: dict[str, float]) -> Features | None:
    from vgtools.io import open_features

    if path is None and weights.keys() & {"voken_reg", "voken_ctr"}:
        raise typer.BadParameter("voken_reg and voken_ctr compare with the images' features", param_hint="--feats")
    return None if path is None else open_features(path)


def _encoder(shape: str | None, tokenizer: str | None, encoder: str | None, seed: int, offline: bool) -> Encoder:
    """Return the model to start from, with its tokenizer."""
    import torch

    from vgtools.checkpoint import as_encoder, load_masked_lm, load_tokenizer
    from vgtools.io import read_json, require
    from vgtools.nn import SHAPES, new_lm

    torch.manual_seed(seed)
    if encoder is not None:
        return load_masked_lm(encoder, offline=offline)
    assert shape is not None
    assert tokenizer is not None
    values = SHAPES.get(shape)
    if values is None:
        if not Path(shape).is_file():
            raise typer.BadParameter(f"{shape!r} is none of {', '.join(SHAPES)}, and no file", param_hint="--shape")
        values = read_json(shape, "a transformers configuration")
        require(values, {"model_type": str}, shape, 1)
    words = load_tokenizer(tokenizer, offline=offline)
    return as_encoder(new_lm(values, words), words, tokenizer)


class _Store:
    """The packed inputs of a run."""

    def __init__(self, text: Encoder, folder: Path, quiet: bool) -> None:
        self.text, self.folder, self.quiet = text, folder, quiet
        self._piped: Packed | None = None

    def open(self, path: str) -> Packed:
        """Return an input in the packed form."""
        from vgtools.blocks import pack
        from vgtools.io import Progress

        if path == "-" and self._piped is not None:
            return self._piped
        with Progress("pretrain: packing", "tokens", quiet=self.quiet) as bar:
            return pack(path, self.folder, self.text.tokenizer, progress=bar)

    def digest(self, path: str) -> str:
        """Return the sha256 of an input; what comes from a pipe is packed for that."""
        from vgtools.io import sha256_file

        if path != "-":
            return sha256_file(path)
        self._piped = self.open(path)
        return hashlib.sha256(self._piped.tokens.data).hexdigest()

    def has_vokens(self, path: str) -> bool:
        """Say whether an input has vokens."""
        from vgtools.blocks import has_vokens

        return has_vokens(path) if self._piped is None or path != "-" else bool((self._piped.tokens[:, 1] >= 0).any())


def _fit(
    run: TrainingRun,
    text: Encoder,
    data: Sequence[Sequence[Packed]],
    bank: Features | None,
    device: torch.device,
    stop: Stop,
    quiet: bool,
    switches: dict[str, bool],
    every: dict[str, Any],
) -> None:
    """Train until the last step, or to the step in which a signal asks to stop."""
    import torch

    from vgtools import io, parallel, steps
    from vgtools.checkpoint import fingerprint, pick_dtype
    from vgtools.systems import voken_lm as system
    from vgtools.train import train

    config = run.config
    given = len(bank.ids) if bank is not None else config["vokens"]
    learned = bool(config["weights"].keys() - {"mlm"})
    count = system.count_vokens(data[0], data[1], text, learned, config["control"], given)
    recipe = system.recipe_for(
        text, vokens=count, block=config["block"], on=config["voken_tokens"], label=config["label"], control=config["control"],
        seed=config["seed"],
    )  # fmt: skip
    corpus, held = (system.corpus_of(files, text, recipe, config["pack"]) for files in data)
    width = bank.array.shape[1] if bank is not None else 0
    shape = system.VokenLMConfig(tuple(config["weights"]), count, width, shared_head=bool(config["shared_head"]))
    torch.manual_seed(config["seed"])
    table = torch.from_numpy(bank.array.astype("float32")) if bank is not None else None
    model = system.VisuallySupervisedLM(text.model, shape, table, pick_dtype(config["dtype"])).to(device)
    if switches["checkpointing"]:
        save = getattr(model.lm, "activation_checkpointing_enable", None) or model.lm.gradient_checkpointing_enable
        save({"use_reentrant": False})
    if switches["compiled"]:
        model.lm.base_model.compile()
    schedule = steps.plan(
        len(corpus), config["batch_size"], config["micro_batch"], config["epochs"], config["steps"], parallel.world()
    )
    first = parallel.rank() == 0
    batches = system.make_batches(corpus, recipe, schedule, device)
    saved, last_saved = time.monotonic(), run.state.step
    with io.Progress("pretrain", "steps", schedule.steps, quiet=quiet) as bar:
        bar.advance(run.state.step)
        records = train(
            model,
            batches,
            steps.train_config(config, schedule),
            weights=config["weights"],
            state=run.state,
            halve=system.halve,
        )
        pieces = run.state.notes.get("pieces", 1)
        for record in records:
            if record.pop("end"):
                continue
            if pieces != run.state.notes.get("pieces", 1):
                pieces = run.state.notes["pieces"]
                said = f"vg: step {record['step']}: memory was short; batches are cut into {pieces} from here on"
                print(said, file=sys.stderr)
            step = record["step"]
            bar.advance(step - bar.done)
            ends = step % schedule.per_epoch == 0 or step == schedule.steps
            judge = bool(held) and (
                ends if config["eval_every"] is None else step % config["eval_every"] == 0 or step == schedule.steps
            )
            mean = steps.mean_record(run.state.notes, record, ends or judge or step % config["log_every"] == 0)
            if mean is not None:
                size = max(1, min(config["batch_size"], config["micro_batch"]) // pieces)
                found = system.evaluate(model, held, recipe, size, device) if judge and first else None
                run.note(mean | ({"valid": found} if found else {}))
                if first:
                    sys.stdout.buffer.write(io.dumps(run.records[-1]))
                    sys.stdout.buffer.flush()
            due = time.monotonic() - saved > every["seconds"] or step - last_saved == every["steps"]
            due, stopped = parallel.anywhere(due, stop.signal is not None)
            if due or stopped or step == schedule.steps:
                run.save()
                saved, last_saved = time.monotonic(), step
            if stopped:  # in all processes, whichever the signal reached
                stop.signal = stop.signal or signal.SIGTERM
                stop.check()
    if not first:
        return
    final = dataclasses.replace(text, fingerprint=fingerprint(model.lm.base_model))
    info = {"voken_lm": dataclasses.asdict(shape), "tokens": corpus.tokens, "blocks": len(corpus), "steps": schedule.steps}
    info |= {"pieces": pieces}  # that a lack of memory cut each batch into
    run.finish(info, final, model.own_weights())
