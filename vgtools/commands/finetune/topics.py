"""The topics of `vg finetune --help TOPIC`."""

from __future__ import annotations

from vgtools.commands.topics import Topic, page

TRAINING = Topic("training", page("finetune.training"))
FILES = Topic("files", page("finetune.files"))
PICTURES = Topic("pictures", page("finetune.pictures"))
RETRIEVAL = Topic("retrieval", page("finetune.retrieval"))
TRANSLATION = Topic("translation", page("finetune.translation"))
CLIP = Topic("clip", page("finetune.clip"))
CLUSTER = Topic("cluster", page("finetune.cluster"))
TABLE = Topic("table", page("finetune.table"))
OWN_PICTURES = Topic("pictures", page("finetune.own"))
