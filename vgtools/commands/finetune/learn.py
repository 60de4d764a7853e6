"""The seeds of a task, learned or resumed in one run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from vgtools.commands.finetune.flags import Given
from vgtools.commands.finetune.learners import LearnerJob, open_tuning
from vgtools.commands.options import run_folder

if TYPE_CHECKING:
    from vgtools.tasks.table import Task


def learn(
    task: Task,
    files: Mapping[str, str],
    hold_out: float | None,
    ref: str,
    given: Given,
    shape: str | None = None,
) -> None:
    """Fine-tune with every seed that is not done, and print the records of a finished run."""
    import torch

    from vgtools.commands.finetune.spread import Make, fit_spread
    from vgtools.io.files import read_json
    from vgtools.models.references import device_type
    from vgtools.tasks.own import definition
    from vgtools.tasks.table import settings_of
    from vgtools.training import processes
    from vgtools.training.session import Session, process_device

    start = given.start
    settings = settings_of(task, asdict(given.learning), shape)
    settings |= {"own": definition(task)} if task.own else {}
    settings |= {"full": True} if start.full else {}
    settings |= {} if hold_out is None else {"hold_out": hold_out}
    work = LearnerJob(task, files, settings, ref)
    spread = given.spread
    # The driver of a cluster only reads the files; its GPU, if it has one, is a worker's.
    kind = device_type(given.runtime.device)
    device = process_device("cpu" if spread.ray else given.runtime.device)
    folder = run_folder(str(start.output), start.restart, ref)  # before anything is loaded
    with processes.joined(device.type == "cuda"):
        with processes.after_first():
            tuning, inputs = open_tuning(work, given, device)
        with Session("finetune", folder, device, quiet=given.runtime.quiet) as session:
            for line in tuning.notes():
                session.note(line)
            config = tuning.config(torch.device(kind))
            parts = (r"seed-\d+",)
            run = session.open("finetune", config, start.restart, parts=parts, inputs=inputs)
            if not run.complete and spread.ray:
                make = Make(work, given, folder.resolve(), config)
                fit_spread(tuning, session, make, spread, kind == "cuda")
            else:
                session.print(*run.records)
                if not run.complete:
                    tuning.fit(session)
            info = read_json(folder / "run.json")
    if not session.quiet:
        from vgtools.reports.tables import print_seeds

        print_seeds(task, info)
