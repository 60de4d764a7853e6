"""The seeds of a fine-tuning on a Ray cluster, one per worker.

A worker learns a seed in the folder `seed-N` of the run, with checkpoints of its own, which any
other worker resumes, and so does a run without the cluster. The driver takes finished seeds in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from vgtools.commands.finetune.flags import Given, Spread
from vgtools.commands.finetune.learners import LearnerJob, open_tuning

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from vgtools.io.inputs import Inputs
    from vgtools.tasks.finetune import FineTuning
    from vgtools.training.session import Session


@dataclass(frozen=True)
class Make:
    """Makes the learner of a seed, in the process of a worker."""

    work: LearnerJob
    given: Given
    folder: Path  # the run's
    config: dict[str, Any]  # the run's

    def __call__(self) -> Callable[[int], dict[str, Any]]:
        """Return a function that learns a seed."""
        from vgtools.training.session import process_device

        device = process_device(self.given.runtime.device)
        opened = open_tuning(self.work, self.given, device)
        return partial(self._learn, *opened, device)

    def _learn(
        self, tuning: FineTuning, inputs: Inputs, device: torch.device, seed: int
    ) -> dict[str, Any]:
        """Learn a seed, or the rest of it.

        Raises:
            DataError: the inputs are not the driver's (78), or as `FineTuning.fit_alone`.
        """
        from vgtools.io.errors import DataError, Exit
        from vgtools.io.files import config_difference
        from vgtools.io.process import when_free
        from vgtools.training.session import Session

        one = tuning.alone(seed)
        config = one.config(device)
        difference = config_difference(self.config | {"seeds": [seed]}, config)
        if difference:
            why = f"a worker has other inputs or another device: {difference}"
            raise DataError(why, self.folder, code=Exit.CONFIG)
        folder = self.folder / f"seed-{seed}"
        with ExitStack() as stack:
            session = Session("finetune", folder, device, quiet=True)
            # A worker that the driver has lost may still write the folder.
            when_free(partial(stack.enter_context, session), 1)
            session.open("finetune", config, inputs=inputs)
            try:
                one.fit_alone(session)
            except DataError as error:
                if error.code != Exit.STOPPED:
                    raise
                sys.exit(error.code)  # this node ends, not the run: the seed is another worker's
        return {"seed": seed}


def fit_spread(tuning: FineTuning, session: Session, make: Make, spread: Spread, gpu: bool) -> None:
    """Learn the seeds that are left on a cluster, and write the run.

    Raises:
        DataError: as `cluster.run` and `FineTuning.fit`.
    """
    from contextlib import closing

    from vgtools.batch import cluster

    assert spread.ray is not None
    session.run.save()  # so that workers find the settings of this run
    session.print(*session.run.records)
    learned = cluster.run(
        make,
        tuning.left(session),
        spread.ray,
        spread.workers,
        gpu,
        unit="seed",
        ahead=0,
        watch=partial(tuning.show_progress, session),
    )
    with closing(learned):
        tuning.fit(session, (record["seed"] for record in learned))
