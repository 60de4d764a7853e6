"""Every target of every `examples/*/Makefile`, run whole at toy size, and checked.

`make examples` runs all of them; `python -m tests.examples [WORD …]` those whose
example, scale or target has one of the words in its name, each in an empty folder:

    python -m tests.examples xdbert             every row of examples/xdbert
    python -m tests.examples xdbert:small       its rows at one scale
    python -m tests.examples xdbert:paper:table3
    python -m tests.examples --list             what would run
    python -m tests.examples xdbert:small --keep DIR -v     what they print, and what they leave

`table.py` is the one place to edit. A new target is one line, in the order in which a reader would
make them; rows of one folder run in this order, so that a base is made once:

    Row("xdbert", "small", "table5", "row of the table | another"),

The words are the example, the scale (`""`: the same at both), its targets, and what is looked for
in what the last of them prints; `makes=` names files instead. `files=` sets variables of that row
alone, `toy=` sizes. `{bert}` in a variable is a path: official files of `tests/tiny/official.py`,
networks of `tests/tiny/hub.py`. Sizes that all rows of an example need are in `TOY`, its files in
`FILES`.

`test_makefiles.py`, which is quick, parses every `vg` call of these targets at their own sizes,
and fails for a target that no row runs.
"""
