"""`vg probe-attention text`: the tokens that attention heads of a text encoder look at."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Literal

import typer

from vgtools.commands.options import (
    Argument,
    Count,
    Runtime,
    help_at_terminal,
    refuse_if,
    run_folder,
)
from vgtools.commands.probe_attention.flags import Output, Probed, Splits, open_model, report, say
from vgtools.commands.signature import flags
from vgtools.io.inputs import Inputs
from vgtools.io.names import is_stream
from vgtools.io.settings import count, file, value


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A classifier over all heads of a text encoder.

    Attributes:
        classifier: Learn heads of words from attention alone, or from attention and words.
        train_on: Split that the classifier learns from; without it: four of five texts, and all
            that is reported is of the fifth.
        epochs: Passes of the classifier over its training sentences.
        vectors: Word vectors for the classifier, in GloVe's text form.
    """

    classifier: Literal["attention", "words"] | None = value(None)
    train_on: str | None = value(None, metavar="NAME")
    epochs: int = count(2)
    vectors: str | None = file(None, show_default="the encoder's own embeddings")

    def check(self, splits: Splits, parser: str | None, texts: str) -> None:
        """Refuse flags that contradict one another."""
        given = self.classifier is not None
        why = "is about --classifier; give it"
        refuse_if(not given and self.train_on, "--train-on", why)
        refuse_if(not given and self.vectors, "--vectors", why)
        why = "needs --parser, which gives the right answers, and a file: it is read more than once"
        refuse_if(given and (parser is None or is_stream(texts)), "--classifier", why)
        unused = self.vectors is not None and self.classifier != "words"
        refuse_if(unused, "--vectors", "is for --classifier words")
        uneven = given and (splits.split is None) != (self.train_on is None)
        shared = self.train_on and self.train_on in (splits.split, splits.select_on)
        why = "names the split to learn from, --split another to report on; give both"
        refuse_if(uneven or shared, "--train-on", why)


@flags
def text(
    context: typer.Context,
    *,
    texts: Annotated[str, Argument("TEXT")] = "-",
    probed: Probed,
    splits: Splits,
    learning: Classifier,
    distances: Annotated[int, Count(least=0)] = 100,
    output: Output = None,
    runtime: Runtime,
) -> None:
    """Measure what each attention head of a text encoder looks at.

    Attention to [CLS], [SEP], punctuation and neighbours, entropies, distances of heads; with
    --parser how often a head finds a word's head or dependent, next to the best offset, with
    intervals over sentences. --classifier learns from all heads together which word is whose head,
    and reports how often it is right on other sentences.

    One JSON record per head, layer and relation goes to stdout, shares in percent; a terminal gets
    tables. Texts longer than the encoder are left out and counted. If it is interrupted, the
    results so far are kept.

    Examples:

        vg probe-attention text wiki.txt --encoder builtin:minilm --parser en_core_web_sm -o probe

        vg probe-attention text wiki.txt -e run --parser wiki.conllu --classifier words | jq -c .

    Args:
        texts: Any text, or rows with a split.
        distances: Texts that the distances of heads are averaged over.
    """
    help_at_terminal(context, texts)
    splits.check()
    learning.check(splits, probed.parser, texts)
    from vgtools.systems.attention_probes import probing
    from vgtools.text.parses import open_parser

    settings = probing.ProbeSettings(
        path=texts, distances=distances, **asdict(probed), **asdict(splits), **asdict(learning)
    )
    folder = None if output is None else run_folder(output)
    inputs = Inputs(f for f in (texts, learning.vectors) if f and folder is not None)
    parse = None if probed.parser is None else open_parser(probed.parser)
    again = partial(open_parser, str(probed.parser))
    model = partial(open_model, settings, runtime)
    found = probing.probe_text_file(settings, parse, again, model, say)
    report(found, settings, folder, inputs, "text")
