"""`vg pretrain`: text and vokens become a language model."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgtools.commands.options import Device, Offline, Quiet, Restart, Seed, choice, run_folder

if TYPE_CHECKING:
    from vgtools.checkpoint import Encoder
    from vgtools.io import Stop
    from vgtools.steps import Job
    from vgtools.train import TrainingRun

Flag = typer.Option


# One module a system: the meaning of its flags (`Pretraining`), its defaults, its losses, the flags that are others'.
_SYSTEMS = {"vokenization": "vgtools.commands.pretrain_vokens", "visualbert": "vgtools.commands.pretrain_visualbert"}
# What decides the weights in every system, as `run.json` names it.
_COMMON = (
    "block", "mask_rate", "epochs", "steps", "batch_size", "micro_batch", "lr", "warmup", "schedule", "weight_decay", "clip",
    "dtype", "log_every", "eval_every", "seed",
)  # fmt: skip


def pretrain(
    context: typer.Context,
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT...", help="Voken rows, text or captions: .jsonl, .npy, .txt, .gz, .zst, -."),
    ],
    output: Annotated[str, Flag("--output", "-o", help="Run directory; the same command again resumes it.")],
    shape: Annotated[
        str | None, Flag(help="From scratch: bert-base, bert-small, roberta-base, roberta-small, or a config.json.")
    ] = None,
    tokenizer: Annotated[
        str | None, Flag("--tokenizer", "-t", help="With --shape: hub name, directory or builtin:NAME.")
    ] = None,
    encoder: Annotated[str | None, Flag("--encoder", "-e", help="Train this one further: hub name, directory, vg run.")] = None,
    system: Annotated[
        str, Flag(help="vokenization, or visualbert: captions and the regions of their images.")
    ] = "vokenization",
    weight: Annotated[
        list[str] | None,
        Flag(
            help="NAME=NUMBER, repeatable: mlm, voken_cls, voken_reg, voken_ctr [mlm=1, with vokens voken_cls=1; 0 is off]; "
            "of visualbert mlm, sip [both 1]."
        ),
    ] = None,
    regions: Annotated[str | None, Flag(help="visualbert: region features X.npy of the captions' images.")] = None,
    region_start: Annotated[
        str,
        Flag(
            help="visualbert: how regions begin: drawn at random (the paper), or words: near the words that they show; "
            "takes minutes, for trainings that are short."
        ),
    ] = "drawn",
    text_only: Annotated[bool, Flag("--text-only", help="visualbert: show no region (table 7, w/o grounded).")] = False,
    late_fusion: Annotated[
        bool, Flag("--late-fusion", help="visualbert: regions join in one new last layer (table 7, w/o early fusion).")
    ] = False,
    voken_tokens: Annotated[str, Flag(help="Tokens whose voken is learned: all, masked or unmasked.")] = "all",
    label: Annotated[str, Flag(help="all, or first: the voken of each sentence's first token only (table 5).")] = "all",
    control: Annotated[str | None, Flag(help="In place of the vokens: random, shuffle, reverse or tokens (table 6).")] = None,
    vokens: Annotated[int | None, Flag(min=1, help="Images of the bank [from the manifest, else the largest voken].")] = None,
    feats: Annotated[str | None, Flag(help="Features of the bank, X.npy: for voken_reg and voken_ctr.")] = None,
    shared_head: Annotated[bool, Flag(help="Vokens share the hidden layer of the masked language model's head.")] = False,
    valid: Annotated[list[str] | None, Flag(help="Evaluate on this file, masks fixed; repeatable.")] = None,
    pack: Annotated[str, Flag(help="stream: blocks cross sentences; document: none crosses an empty row.")] = "stream",
    block: Annotated[int, Flag(min=8, help="Tokens a block or a text, special tokens counted.")] = 128,
    mask_rate: Annotated[float, Flag(min=0.01, max=0.9, help="Share of the tokens that are masked, to be predicted.")] = 0.15,
    epochs: Annotated[int | None, Flag(min=1, help="Passes over the input [40, visualbert 10, unless --steps].")] = None,
    steps: Annotated[int | None, Flag(min=1, help="Steps in all, in place of --epochs.")] = None,
    batch_size: Annotated[
        int | None, Flag(min=1, help="Most blocks or texts a step, over all processes [256, visualbert 64].")
    ] = None,
    micro_batch: Annotated[
        int | None, Flag(min=1, help="Most of them a process holds at a time; more make a step [--batch-size].")
    ] = None,
    lr: Annotated[float | None, Flag(min=0, help="Highest learning rate of AdamW [2e-4, visualbert 5e-5].")] = None,
    warmup: Annotated[float | None, Flag(min=0, help="Steps of warm-up; below 1, their share [0.05, visualbert 0.1].")] = None,
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
    cache: Annotated[str | None, Flag(help="Keep packed inputs in this folder, for other runs [RUN.packed, removed].")] = None,
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

    With --system visualbert it learns from captions {"image", "text"} and --regions: masked words with the regions in view, and
    whether a second caption belongs to the image (sip). Task-specific pretraining is the same command with --encoder RUN.
    encoder/ is then a VisualBertForPreTraining.

    torchrun and accelerate launch start it on several GPUs or machines: a step is the same however many processes share it.

    Examples:

        vg pretrain vokens.jsonl --shape bert-small --tokenizer google-bert/bert-base-uncased -o run

        vg pretrain wiki.txt --shape bert-small -t google-bert/bert-base-uncased --valid valid.txt -o run.mlm

        vg pretrain vokens.npy --encoder run.mlm --weight voken_cls=1 --steps 1000 --dtype bfloat16 -o run.vokens

        vg pretrain --system visualbert captions.jsonl --regions regions.npy --encoder google-bert/bert-base-uncased -o run

        torchrun --nproc-per-node 4 -m vgtools pretrain vokens.npy --shape bert-base -t google-bert/bert-base-uncased -o run
    """
    choice(system, tuple(_SYSTEMS), "--system")
    choice(schedule, ("linear", "cosine", "constant"), "--schedule")
    choice(dtype, ("float32", "bfloat16"), "--dtype")
    own = importlib.import_module(_SYSTEMS[system])
    flags = _settings(context, own)
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
    from vgtools.checkpoint import pick_device
    from vgtools.train import TrainingRun

    weights = _weights(weight, own.LOSSES)
    first = parallel.rank() == 0
    if parallel.world() > 1 and "-" in [*inputs, *(valid or ())]:
        raise typer.BadParameter("several processes cannot read one pipe; write a file first", param_hint="-")
    where = pick_device(parallel.device_name(device))
    if where.type == "cuda":
        import torch

        torch.cuda.set_device(where)
    text = _encoder(system, shape, tokenizer, encoder, seed, offline)
    folder = run_folder(output)
    with io.Stop() as stop, contextlib.ExitStack() as stack:
        stack.enter_context(parallel.joined(where.type == "cuda"))
        if first:
            stack.callback(io.Lock(folder).release)
        work = own.Pretraining(flags, weights, text, folder, quiet or not first)
        config = work.config() | {name: getattr(flags, name) for name in _COMMON}
        config |= {"device": where.type, "processes": parallel.world()}
        with parallel.in_turn():
            run = TrainingRun(folder, own.KIND, config, restart and first)
        for record in run.records if first else ():
            sys.stdout.buffer.write(io.dumps(record))
        if not run.complete:
            every = {"steps": checkpoint_steps, "seconds": 60 * checkpoint_minutes}
            _fit(run, work.job(config, where), stop, quiet or not first, every)
        if first:
            work.close()


def _settings(context: typer.Context, own: Any) -> Any:
    """Return the flags with a system's defaults in the place of what was not given; refuse those of another system."""
    flags = SimpleNamespace(**context.params)
    for parameter in context.command.params:
        if parameter.name in own.FOREIGN and getattr(flags, parameter.name) != parameter.default:
            raise typer.BadParameter(f"does nothing for --system {flags.system}", param_hint=parameter.opts[0])
    for name, value in own.DEFAULTS.items():
        if getattr(flags, name) is None and not (name == "epochs" and flags.steps is not None):
            setattr(flags, name, value)
    flags.micro_batch = flags.micro_batch or flags.batch_size
    return flags


def _weights(given: list[str] | None, names: tuple[str, ...]) -> dict[str, float]:
    """Return the weight of each loss by name, those of 0 left out; nothing if none is given."""
    found: dict[str, float] = {}
    for item in given or ():
        name, _, number = item.partition("=")
        choice(name, names, "--weight")
        try:
            found[name] = float(number)
        except ValueError:
            raise typer.BadParameter(f"{item!r}: NAME=NUMBER was wanted, for example mlm=1.0", param_hint="--weight") from None
    if not all(0 <= value < float("inf") for value in found.values()) or (given and not any(found.values())):
        raise typer.BadParameter("weights are 0 or more, and one of them is more", param_hint="--weight")
    return {name: value for name, value in found.items() if value}


def _encoder(
    system: str, shape: str | None, tokenizer: str | None, encoder: str | None, seed: int, offline: bool
) -> Encoder | None:
    """Return the model to start from, with its tokenizer; None if a VisualBERT goes on, which its system loads."""
    import torch

    from vgtools.checkpoint import as_encoder, load_masked_lm, load_tokenizer, read_config
    from vgtools.io import read_json, require
    from vgtools.nn import SHAPES, new_lm

    torch.manual_seed(seed)
    if encoder is not None:
        if system == "visualbert" and read_config(encoder, offline=offline).get("model_type") == "visual_bert":
            return None
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


def _fit(run: TrainingRun, job: Job, stop: Stop, quiet: bool, every: dict[str, Any]) -> None:
    """Train until the last step, or to the step in which a signal asks to stop."""
    from vgtools import io, parallel, steps
    from vgtools.train import train

    config, schedule = run.config, job.schedule
    first = parallel.rank() == 0
    if job.start is not None and not run.state.step:
        job.start()
    saved, last_saved = time.monotonic(), run.state.step
    with io.Progress("pretrain", "steps", schedule.steps, quiet=quiet) as bar:
        bar.advance(run.state.step)
        records = train(
            job.model,
            job.batches,
            steps.train_config(config, schedule),
            weights=config["weights"],
            state=run.state,
            halve=job.halve,
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
            judge = job.evaluate is not None and (
                ends if config["eval_every"] is None else step % config["eval_every"] == 0 or step == schedule.steps
            )
            mean = steps.mean_record(run.state.notes, record, ends or judge or step % config["log_every"] == 0)
            if mean is not None:
                size = max(1, min(config["batch_size"], config["micro_batch"]) // pieces)
                found = job.evaluate(size) if job.evaluate and judge and first else None
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
    info, final, weights = job.finish()
    run.finish(info | {"steps": schedule.steps, "pieces": pieces}, final, weights)  # pieces: that memory cut each batch into
