"""The flags of `vg build-index`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vgtools.commands.options import Language, refuse_if
from vgtools.commands.topics import Topic, page
from vgtools.io.settings import count, file, value

FOREIGN = Topic("embeddings", page("build-index.embeddings"))


AUTO = Topic("auto", page("build-index.auto"))
RIGHTS = Topic("rights", page("build-index.rights"))
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([KMGT]?)(i?)B?", re.IGNORECASE)
_MEMORY = "4GB"
_RECALL = 0.95


@dataclass(frozen=True, kw_only=True)
class Lists:
    """The part of a bank that is searched, beyond some 10 million images."""

    factory: str = value(
        "Flat",
        "Flat is exact. IVF4096,SQ8 and IVF4096,Flat look into a part of 4096 lists of like"
        " images, of a byte or of a float per dimension. Any other faiss factory string is"
        " also taken; auto chooses by measuring.",
        metavar="NAME",
    )
    nprobe: int | None = count(
        None, "Lists that a search looks into; also the default of vg vokenize. [default: 32]"
    )
    memory: str | None = value(
        None, "Bytes of the index.", metavar="SIZE", show_default=_MEMORY, topic=AUTO
    )
    recall: float | None = value(
        None,
        "How often the image of the exact search is found.",
        metavar="SHARE",
        min=0,
        max=1,
        show_default=str(_RECALL),
        topic=AUTO,
    )

    @property
    def goal(self) -> tuple[int, float]:
        """The bytes and the recall that `auto` aims at.

        Raises:
            typer.BadParameter: the memory is not a size.
        """
        found = _SIZE.fullmatch(self.memory or _MEMORY)
        refuse_if(not found, "--memory", f"expected a size, as {_MEMORY}, got {self.memory!r}")
        assert found is not None
        unit = 1024 if found[3] else 1000
        power = " KMGT".index(found[2].upper() or " ")
        recall = _RECALL if self.recall is None else self.recall
        return int(float(found[1]) * unit**power), recall


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The keys that images are found by."""

    matcher: str | None = value(
        None,
        "Run of vg train-matcher that embeds them; or, without training, the CLIP or its kin that "
        "made FEATS.",
        "--matcher",
        "-m",
        metavar="REF",
    )
    vectors: str | None = value(
        None,
        "Word vectors of vg prepare vectors, or builtin:glove-50d: by the mean of their"
        " captions' words, or of their nouns and definition.",
        metavar="X.npy",
    )
    keywords: int | None = count(None, "By the N words per caption of the highest TF-IDF.")
    context_weight: float | None = value(
        None,
        "With --matcher: weight of the sentence next to the word wherever the index is used.",
        "--context",
        metavar="W",
        min=0,
        max=1000,
        show_default="the run's",
    )
    emb: str | None = value(
        None,
        "With FEATS and --matcher: also write the embeddings, (N, E) float32; without FEATS: read"
        " them.",
        metavar="X.npy",
    )
    drop_duplicates: float | None = value(
        None,
        "With --matcher: leave out images whose cosine with one before is at least this;"
        " X.duplicates.jsonl lists them.",
        metavar="COSINE",
        min=-1,
        max=1,
    )
    images: str | None = file(
        None, 'With --matcher: rows with "license" and "url" of the images.', topic=RIGHTS
    )
    ids: str | None = file(None, "Without FEATS: the images of --emb.", topic=FOREIGN)
    stop_words: str | None = file(None, "Words that do not count, one per line; nltk: NLTK's.")
    language: Language = "en"

    def check(self, source: str | None, output: str, lists: Lists) -> None:
        """Refuse flags that do not go together.

        Raises:
            typer.BadParameter: more or fewer than one of --matcher, --vectors and --keywords, or a
                flag or an output of another kind.
        """
        foreign = source is None and self.emb is not None
        refuse_if(source is None and not foreign, "FEATS", "is missing")
        refuse_if(self.ids and not foreign, "--ids", "names the images of --emb, without FEATS")
        one = [self.matcher, self.vectors, self.keywords].count(None) == 2
        refuse_if(not one, None, "exactly one of --matcher, --vectors and --keywords is required")
        suffix = ".faiss" if self.keywords is None else ".jsonl"
        refuse_if(not output.endswith(suffix), "-o", f"must end in {suffix}, got {output!r}")
        wrong = self.stop_words is not None and self.matcher is not None
        refuse_if(wrong, "--stop-words", "belongs to --vectors and --keywords")
        wrong = self.language != "en" and self.matcher is not None
        refuse_if(wrong, "--language", "belongs to --vectors and --keywords")
        refuse_if(self.matcher is None and self.emb, "--emb", "belongs to --matcher")
        wrong = self.matcher is None and self.drop_duplicates is not None
        refuse_if(wrong, "--drop-duplicates", "belongs to --matcher")
        refuse_if(self.matcher is None and self.images, "--images", "belongs to --matcher")
        wrong = lists.factory != "auto" and (lists.memory, lists.recall) != (None, None)
        refuse_if(wrong, "--memory/--recall", "belongs to --factory auto")
        assert lists.goal
        wrong = self.matcher is None and lists.factory != "Flat"
        refuse_if(wrong, "--factory", "belongs to --matcher")
        wrong = lists.nprobe is not None and not foreign and "IVF" not in lists.factory
        refuse_if(wrong, "--nprobe", "belongs to --factory IVF…")
        weighed = self.matcher is None and self.context_weight is not None
        refuse_if(weighed, "--context", "belongs to --matcher")
