"""Retrieval: the image bank, exact or in lists, and the searches in it.

`exact` and `device` are the exact search, on a CPU and on a GPU; `index` opens and searches index
files, `build` writes them, `choice`
and `duplicates` decide what of, `foreign`
reads embeddings that were made elsewhere; `texts` finds images of whole texts.
"""

from vgtools.retrieval.build import IndexPlan, check_factory, make_index, serialize, write_index
from vgtools.retrieval.choice import AUTO, choose
from vgtools.retrieval.duplicates import Distinct, distinct
from vgtools.retrieval.exact import SearchResult, cores, exact_search, largest_norm, nothing_found
from vgtools.retrieval.foreign import Embeddings, foreign_files, open_embeddings
from vgtools.retrieval.index import (
    FLAT,
    METRIC,
    Index,
    bare_index,
    check_embeddings,
    matcher_path,
    open_index,
    open_indexes,
)
from vgtools.retrieval.texts import (
    EmbeddedBank,
    NearestImages,
    Ranking,
    TextRetriever,
    first_of,
    leave_out,
    rank,
    retrieve,
)

__all__ = [
    "AUTO",
    "FLAT",
    "METRIC",
    "Distinct",
    "EmbeddedBank",
    "Embeddings",
    "Index",
    "IndexPlan",
    "NearestImages",
    "Ranking",
    "SearchResult",
    "TextRetriever",
    "bare_index",
    "check_embeddings",
    "check_factory",
    "choose",
    "cores",
    "distinct",
    "exact_search",
    "first_of",
    "foreign_files",
    "largest_norm",
    "leave_out",
    "make_index",
    "matcher_path",
    "nothing_found",
    "open_embeddings",
    "open_index",
    "open_indexes",
    "rank",
    "retrieve",
    "serialize",
    "write_index",
]
