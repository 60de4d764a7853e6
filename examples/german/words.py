"""Count words, stems, compounds and subwords of captions: a row of a table.

    python words.py de captions.jsonl TOKENIZER [TOKENIZER …]

Dev captions are compared with train captions. A compound is a word that no
training caption has, made of two words that some have, perhaps with a link such as s or en.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from vgtools.models.references import load_tokenizer
from vgtools.text.tokens import load_stop_words, stem_key, tokenize

LINKS = ("", "s", "n", "en", "e", "es", "er")
LEAST = 3  # letters of each part of a compound

language, captions, *tokenizers = sys.argv[1:]
stop_words = load_stop_words(language=language)
texts: dict[str, list[str]] = {"train": [], "dev": []}
for line in Path(captions).read_text().splitlines():
    row = json.loads(line)
    texts[row["split"]].append(row["text"])
words = {
    split: [word.lower() for text in part for word in re.findall(r"[^\W\d_]+", text)]
    for split, part in texts.items()
}
seen = {*words["train"]}
stems = {stem_key(word, language) for word in seen}


def is_compound(word: str) -> bool:
    """Return whether a word is made of two words that were seen."""
    for end in range(LEAST, len(word) - LEAST + 1):
        if word[end:] in seen:
            for link in LINKS:
                first = word[:end].removesuffix(link)
                if word[:end].endswith(link) and len(first) >= LEAST and first in seen:
                    return True
    return False


content = [word for word in words["dev"] if word not in stop_words]
unseen = [word for word in content if stem_key(word, language) not in stems]
compounds = [word for word in unseen if is_compound(word)]
pieces = []
for name in tokenizers:
    tokens = tokenize(load_tokenizer(name), texts["dev"])
    pieces.append(f"{len(tokens.ids) / len(words['dev']):.2f}")
print(
    f"| {language} | {len(seen):,} | {len(stems):,} | {100 * len(content) / len(words['dev']):.1f} "
    f"| {100 * len(unseen) / len(content):.1f} | {100 * len(compounds) / len(content):.1f} "
    f"| {' | '.join(pieces)} |"
)
examples = sorted(set(compounds), key=lambda word: (-len(word), word))[:5]
print(f"{language}: compounds such as {', '.join(examples) or 'none'}", file=sys.stderr)
