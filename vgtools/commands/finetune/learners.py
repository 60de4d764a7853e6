"""The learners of a task: an encoder of text, or a system of one of the papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from vgtools.commands.finetune.flags import (
    ANSWERED,
    AnswerTaskFlags,
    FoundImages,
    Given,
    PictureTaskFlags,
)
from vgtools.commands.options import refuse_if
from vgtools.io.process import note

if TYPE_CHECKING:
    import torch

    from vgtools.io.inputs import Inputs
    from vgtools.tasks.finetune import FineTuning, Learner
    from vgtools.tasks.table import Task


class LearnerJob(NamedTuple):
    """A task, the files and the settings to learn it with."""

    task: Task
    files: Mapping[str, str]
    settings: dict[str, Any]
    ref: str  # the encoder's

    def common(self, device: torch.device) -> tuple[Task, str, dict[str, Any], torch.device]:
        """Return the arguments that every learner takes first."""
        return self.task, self.ref, self.settings, device


def open_tuning(work: LearnerJob, given: Given, device: torch.device) -> tuple[FineTuning, Inputs]:
    """Return the fine-tuning of the seeds, and the files that it reads."""
    from vgtools.io.inputs import Inputs
    from vgtools.tasks.finetune import FineTuning
    from vgtools.tasks.kinds.answer import with_annotations

    regions = given.pictures.regions
    read = [*with_annotations(work.task, work.files.values()), *(given.shown.retrieved or ())]
    inputs = Inputs([*read, *([regions] if regions else [])])
    learner, settings = learner_of(work, given.pictures, given.shown, device)
    return FineTuning(work.task, learner, work.files, work.settings | settings, work.ref), inputs


def learner_of(
    work: LearnerJob,
    pictures: PictureTaskFlags,
    shown: FoundImages,
    device: torch.device,
) -> tuple[Learner, dict[str, Any]]:
    """Return the learner of the task with its images, and the settings that these add."""
    from vgtools.systems.grounding.model import is_grounded

    if pictures.regions is not None:
        return _with_regions(work, pictures, pictures.regions, device)
    if work.settings.get("full"):
        from vgtools.systems.xdbert.model import is_xdbert
        from vgtools.systems.xdbert.tasks import FullLearner

        why = f"{work.ref} is not a run of vg pretrain xdbert, nor a seed-N/model of --full"
        refuse_if(not is_xdbert(work.ref), "--full", why)
        given = shown.retrieved or shown.index or shown.feats
        refuse_if(given, "--full", "learns without images; leave out the flags that find them")
        return FullLearner(*work.common(device)), {}
    if is_grounded(work.ref) and work.task.kind != "translate":
        from vgtools.systems.grounding import tasks as grounding

        refuse_if(shown.retrieved, "--retrieved", "a grounded encoder finds images by --index")
        found = grounding.open_images(work.ref, shown.feats, shown.index, shown.images)
        learner = grounding.GroundedLearner(*work.common(device), found)
        return learner, found.config()
    return _of_text(work, shown, device)


def _with_regions(
    work: LearnerJob, pictures: PictureTaskFlags, file: str, device: torch.device
) -> tuple[Learner, dict[str, Any]]:
    """Return the learner of a task with pictures."""
    from vgtools.systems.visualbert.tasks import VisualLearner, open_regions_of
    from vgtools.tasks.dispatch import known_answers

    given = pictures.answers if isinstance(pictures, AnswerTaskFlags) else None
    answers = given or str(ANSWERED)
    known = known_answers(work.task, work.files["train"], answers, work.settings)
    regions = open_regions_of(work.ref, file, pictures.boxes, known)
    return VisualLearner(*work.common(device), regions), regions.config()


def _of_text(
    work: LearnerJob, shown: FoundImages, device: torch.device
) -> tuple[Learner, dict[str, Any]]:
    """Return the learner of a task on an encoder of text, with fused images or without."""
    from vgtools.models.clip import is_tower
    from vgtools.systems.visual_awareness import tasks as fused
    from vgtools.systems.visual_awareness.fusion import fusion_of
    from vgtools.systems.visual_awareness.slots import open_images
    from vgtools.systems.visual_awareness.translation import FusedTranslationLearner
    from vgtools.systems.xdbert.tasks import TowerLearner
    from vgtools.tasks.finetune import Learner
    from vgtools.tasks.translation import TranslationLearner
    from vgtools.tasks.translation import config as translation_config

    common = work.common(device)
    seen = None
    added = dict[str, Any]()
    start = None if work.settings.get("shape") else work.ref
    if shown.retrieved and shown.feats:
        images = open_images(shown.retrieved, shown.feats, shown.images, shown.index)
        fusing = fused.Fusing(
            shown.fusion, shown.fusion_start, shown.image_dropout, shown.image_weight
        )
        added = images.config() | fusing.config(start)
        seen = images, fusing
    why = "is for runs of vg pretrain grounding, or with --retrieved"
    refuse_if(not seen and (shown.index or shown.feats), "--index/--feats", why)
    if not seen and start is not None and fusion_of(start) is not None:
        lost = "learns on without its fusion; --retrieved and --feats continue with it"
        note("finetune", f"{work.ref} {lost}")
    if work.task.kind == "translate":
        added |= translation_config()
        if seen is None:
            return TranslationLearner(*common), added
        return FusedTranslationLearner(*common, *seen), added
    if is_tower(work.ref):
        refuse_if(seen, "--retrieved", "images are fused into encoders like BERT, not into a CLIP")
        return TowerLearner(*common), {}
    if seen:
        return fused.FusedLearner(*common, *seen), added
    return Learner(*common), {}
