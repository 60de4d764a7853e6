"""`vg prepare wikitext`, `wikipedia`, `squad`, `sentences`: running text, one piece per line."""

from __future__ import annotations

from typing import Annotated, Any

from vgtools.commands.options import Argument, Count, File, Flag, Quiet, Target, Value, refuse_if
from vgtools.commands.signature import flags
from vgtools.datasets.rows import save
from vgtools.io.errors import Tally
from vgtools.io.process import note

DropEmpty = Annotated[bool, Flag("--drop-empty", help="Drop empty lines.")]


@flags
def wikitext(
    text: Annotated[str, Argument("FILE")],
    target: Target,
    drop_headings: Annotated[bool, Flag("--drop-headings")] = False,
    drop_empty: DropEmpty = False,
    drop_short: Annotated[int, Count(least=0)] = 0,
    trim: Annotated[bool, Flag("--trim")] = False,
    quiet: Quiet = False,
) -> None:
    """Filter the lines of WikiText: headings, empty and short ones are dropped by flags.

    Each filter counts its drops on stderr; without one all lines stay, and so does <unk>.

    Examples:

        vg prepare wikitext wiki.train.tokens --drop-headings --drop-short 5 --trim -o wiki.txt

        vg prepare wikitext wiki.valid.tokens --drop-empty | wc -l

    Args:
        text: wiki.train.tokens or the like
        drop_headings: Drop ' = Title = ' lines.
        drop_short: Drop lines of fewer than N words (paper: 5).
        trim: Remove spaces at both ends of a line.
    """
    from vgtools.datasets import running_text
    from vgtools.io.streams import read_text_rows

    tally = Tally()
    filters: dict[str, Any] = {
        "drop_headings": drop_headings,
        "drop_empty": drop_empty,
        "drop_short": drop_short,
        "trim": trim,
    }
    rows = running_text.wikitext(read_text_rows(text, tally.text), tally, **filters)
    config = {"command": "wikitext"} | filters
    save(rows, target.output, tally, "lines", config, [text], target.restart)
    if not any(filters.values()):
        note("prepare", "all of them: no filter is given, for example --drop-headings")


@flags
def wikipedia(
    dump: Annotated[str, Argument("DUMP")],
    target: Target,
    pages: Annotated[bool, Flag("--pages")] = False,
    page_views: Annotated[list[str] | None, File()] = None,
    least_views: Annotated[int | None, Count(show_default="20")] = None,
    project: Annotated[str | None, Value("NAME", show_default="en")] = None,
    quiet: Quiet = False,
) -> None:
    r"""Write the articles of Wikipedia's dump as text.

    Paragraphs, one per line; an empty line ends an article. Templates, tables, lists, headings and
    notes are left out, and so are redirects and pages that are not articles. An hour's page views
    are pageviews-….gz, a day's pageviews-…-user.bz2. Needs mwparserfromhell, of the extra
    wikipedia. The whole dump takes hours on one core: call it for each of its parts, in several
    processes.

    Examples:

        vg prepare wikipedia enwiki-latest-pages-articles1.xml-p1p41242.bz2 -o wiki.1.txt

        vg prepare wikipedia enwiki-latest-pages-articles.xml.bz2 \
            | vg prepare wikitext - --drop-short 5 | vg prepare sentences - -o wiki.txt

        vg prepare wikipedia enwiki-latest-pages-articles.xml.bz2 --pages \
            --page-views pageviews-20131101-user.bz2 --least-views 20 -o pages.txt

    Args:
        dump: enwiki-…-pages-articles.xml.bz2, or a part.
        pages: A line per article; else one per paragraph.
        page_views: Wikimedia's page views, of an hour, day or month; repeatable.
        least_views: Fewest views of an article that is kept (20: paper of grounding).
        project: Project of the page views.
    """
    for name, given in (("--least-views", least_views), ("--project", project)):
        refuse_if(given is not None and not page_views, name, "needs --page-views")
    twice = len({*(page_views or ())}) < len(page_views or ())
    refuse_if(twice, "--page-views", "names a file twice, whose views would count twice")
    least = 20 if least_views is None else least_views
    project = project or "en"
    from vgtools.datasets import wikipedia as source
    from vgtools.io.inputs import Inputs

    tally = Tally()
    inputs = Inputs([dump, *(page_views or ())])
    views = source.page_views(page_views, project) if page_views else None
    rows = source.wikipedia(dump, tally, whole=pages, views=views, least=least)
    config: dict[str, Any] = {"command": "wikipedia", "pages": pages}
    if page_views:
        config |= {"least_views": least, "project": project}
    save(rows, target.output, tally, "lines", config, inputs, target.restart)


@flags
def squad(
    file: Annotated[str, Argument("FILE")],
    target: Target,
    quiet: Quiet = False,
) -> None:
    """Write the paragraphs of SQuAD as text.

    Each once, one per line: running text of Wikipedia. An empty line ends an article.

    Examples:

        vg prepare squad train-v1.1.json -o paragraphs.txt

        vg prepare squad train-v1.1.json | vg prepare sentences - > squad.txt

    Args:
        file: train-v1.1.json or the like
    """
    from vgtools.datasets import running_text

    tally = Tally()
    rows = running_text.squad(file, tally)
    save(rows, target.output, tally, "lines", {"command": "squad"}, [file], target.restart)


@flags
def sentences(
    target: Target,
    text: Annotated[str, Argument("FILE")] = "-",
    language: Annotated[str, Value("XX")] = "en",
    drop_empty: DropEmpty = False,
    quiet: Quiet = False,
) -> None:
    r"""Split a text into sentences, one per line.

    Rules of the sentencex package, which need no data. Order stays, and so do empty lines, unless
    --drop-empty.

    Examples:

        vg prepare sentences article.txt --drop-empty -o sentences.txt

        vg prepare wikitext wiki.train.tokens --drop-headings --drop-short 5 \
            | vg prepare sentences - | gzip > wiki.txt.gz

    Args:
        text: A text, or a .jsonl with "text"; - is stdin.
        language: Two letters: whose abbreviations to know.
    """
    from vgtools.datasets import running_text
    from vgtools.io.streams import read_text_rows

    unknown = f"{language!r} is not one of {', '.join(running_text.LANGUAGES)}"
    refuse_if(language not in running_text.LANGUAGES, "--language", unknown)
    tally = Tally()
    rows = running_text.sentences(
        read_text_rows(text, tally.text), language, tally, drop_empty, text
    )
    config = {"command": "sentences", "language": language, "drop_empty": drop_empty}
    save(rows, target.output, tally, "sentences", config, [text], target.restart)
