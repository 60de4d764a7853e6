"""A quick share of the fault harness, and the harness itself."""

from __future__ import annotations

import json
import os
import random
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults import mutations, offline, resealed, sizes
from tests.faults.cases import BY_NAME, CASES
from tests.faults.mutations import FORMATS, mutated
from tests.faults.operations import Fault
from tests.faults.run import SUITES, attempt, main
from tests.faults.server import Call, Done
from tests.faults.trials import Outcome, Workspace, difference, fault_of, litter

# Trials of each quick case in `make test`; `make faults` runs thousands.
SHARE = {
    "kills": 2,
    "inputs": 2,
    "damage": 1,
    "planted": 1,
    "aliases": 1,
    "races": 1,
    "lists": 3,
    "resealed": 1,
    "sizes": 1,
    "offline": 1,
}


# ------------------------------------------------------------------------------------ quick share


@pytest.mark.slow
@pytest.mark.parametrize("case", [c.name for c in CASES if c.quick])
@pytest.mark.parametrize("suite", SHARE)
def test_nothing_new_fails(suite: str, case: str, space: Workspace) -> None:
    for trial in SUITES[suite].plan(space, BY_NAME[case], SHARE[suite], 0):
        outcome = attempt(space, trial)
        assert not outcome.verdict, outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    "trial",
    [
        "inputs vokenize vg.faiss insert+.6",  # numpy warned before the message
        "inputs prepare-arrays sets/others.npy npy_other.12",  # an array of no dimension
        "inputs compare compare/mlm/rte/run.json missing",  # a task left out without a word
        "inputs perplexity grounded/run.json folder",  # its text encoder taken for the run
        "inputs perplexity mixed.jsonl fifo",  # read once per model: it waited forever
        "inputs finetune-vqa vqa/v2_mscoco_train2014_annotations.json fifo",  # read twice
        "inputs show-retrieved bank.jsonl fifo",  # read once per strategy
        "inputs compare compare/mlm/rte/run.json dangling",  # left out like an empty folder
        "inputs probe entities.jsonl fifo",  # read twice
        "inputs probe-text plain.txt fifo",
        "kills probe-text term@3",  # stopped between opening and locking
        "damage pretrain-grounding kill@48 0 missing.2",  # records without a checkpoint
        "inputs compare grounded.jsonl fifo",  # read twice
        "inputs revokenize-npy v.jsonl lines.26",  # rewritten, of the same size
        "kills pretrain-grounding full@4,full@3",  # a temporary file that could not be closed
        "inputs pretrain-grounding-scene photos.npy flips+.16",  # features of 1e30
        "inputs pretrain-xdbert clip/tower/config.json json_value.8",  # a mark that is no number
        "inputs show-retrieved found.jsonl fifo",  # named twice
        "inputs show-heat heat.jsonl json_twice.6",  # not what its manifest has the hash of
        "inputs train-retriever skip/utable.npy npy_header.12",  # word vectors of 1e30
        "inputs pretrain-grounding joint/model.safetensors weights_values.13",  # weights of 1e38
        "inputs finetune-grounded associated/feats.json json_twice.7",  # a backbone that is 1
        "damage prepare-vcr kill@23 80 any.2",  # a manifest that is {}
        "kills revokenize-shards kill@26,kill@11",  # a temporary file of the folder's manifest
        "sizes perplexity grounded/grounding.safetensors weights+.0",  # a header of 2**56 bytes
        "sizes locate retriever/retriever.safetensors weights+.3",  # a tensor beyond the end
        "resealed extract kill@37 50 key.1",  # a journal that lacks an input
        "resealed train-retriever-pixels kill@58 80 type.14",  # --restart kept a journal
        "resealed vokenize-shards kill@37 46 type.14",  # a commit made from another input
        "resealed vokenize-npy kill@21 46 type.1",  # a journal whose number of rows is an object
    ],
)
def test_what_once_failed_does_not_any_more(trial: str, space: Workspace) -> None:
    outcome = attempt(space, trial)
    assert not outcome.verdict, outcome


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)
ROWS = st.dictionaries(st.sampled_from(["text", "spans", "vokens", "scores", "images"]), VALUES)


@pytest.mark.slow
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(rows=st.lists(ROWS | VALUES, min_size=1, max_size=3), surrogates=st.booleans())
@pytest.mark.parametrize(
    "command",
    [
        "revokenize - -t in/tokenizer",
        "show - --ids in/vg.ids",
        "retrieve - --index in/vg.faiss --device cpu -q",
    ],
)
def test_any_json_is_an_answer_or_one_line(
    command: str, rows: list[object], surrogates: bool, space: Workspace
) -> None:
    text = "".join(json.dumps(row, ensure_ascii=surrogates) + "\n" for row in rows)
    call = Call(
        command.split(), str(space.folder), stdin=text.encode("utf-8", "surrogatepass"), limit=True
    )
    assert fault_of(space.server.one(call)) == ("", "")


# ------------------------------------------------------------------------------------ the harness


@pytest.mark.slow
def test_a_kill_tears_the_write_that_it_meets(space: Workspace) -> None:
    case = BY_NAME["prepare-wikitext"]
    expected = space.reference(case)
    writes = [n for n, o in enumerate(expected.operations, 1) if o == "write w.txt.part"]
    space.clear()
    done = space.run(case, Fault("kill", writes[0]))
    assert done.code == -9
    assert done.operations == expected.operations[: writes[0]]
    part = (space.folder / "w.txt.part").read_bytes()
    assert 0 < len(part) < len((space.artefacts / "sets/wiki.txt").read_bytes())


@pytest.mark.slow
def test_a_full_disk_stops_every_growing_operation(space: Workspace) -> None:
    case = BY_NAME["prepare-wikitext"]
    space.reference(case)
    done = space.run(case, Fault("full", 4))
    assert done.code == 74
    assert "No space left on device" in done.err


def test_who_connects_is_seen() -> None:
    with offline.listener() as (port, seen):
        assert seen == []
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            assert connection.recv(1) == b""
        assert len(seen) == 1


FORMS = {
    ".npy": "feats.npy",
    ".faiss": "vg.faiss",
    ".safetensors": "matcher/matcher.safetensors",
    ".tar": "photos.tar",
    ".hdf5": "published/vg.hdf5",
}


@pytest.mark.parametrize("ending", FORMS)
def test_more_is_declared_than_is_there(ending: str, artefacts: Path) -> None:
    good = (artefacts / FORMS[ending]).read_bytes()
    way = {".safetensors": "weights"}.get(ending, ending[1:])
    made = {sizes.WAYS[way](good, random.Random(seed)) for seed in range(20)} - {None, good}
    assert len(made) > 3
    # The rest of the file is as it was: only a header declares it.
    assert all(abs(len(bad or b"") - len(good)) < 200 for bad in made)


@pytest.mark.parametrize("name", ["vg.json", "matcher/run.json", "sst.found.json"])
def test_one_value_changes_and_the_seal_fits(name: str, artefacts: Path, tmp_path: Path) -> None:
    good = (artefacts / name).read_bytes()
    path = tmp_path / Path(name).name
    for seed in range(20):
        path.write_bytes(good)
        assert resealed.tamper(path, ("type", "key")[seed % 2], random.Random(seed))
        body = json.loads(path.read_bytes())
        assert body != json.loads(good)
        if path.name == "run.json":
            again = mutations.reseal_run(path.read_bytes())
            assert json.loads(again or b"") == body


@pytest.mark.slow
def test_a_hang_is_ended(space: Workspace) -> None:
    os.mkfifo(space.folder / "pipe")
    call = Call(["stats", "pipe"], str(space.folder), idle=1.0)
    done = space.server.one(call)
    assert done.code is None
    space.clear()


@pytest.mark.parametrize(
    ("done", "verdict"),
    [
        (Done(0, b"", "vg prepare: 3 rows\n", []), ""),
        (Done(65, b"", "vg stats: a note\nvg: x.npy: is damaged\n", []), ""),
        (Done(65, b"", "vg: y.npy: is damaged\n", []), "message"),
        (Done(65, b"", "vg: x.npy: is\ndamaged\n", []), "message"),
        (Done(65, b"", "", []), "message"),
        (Done(0, b"", "RuntimeWarning: overflow\n", []), "message"),
        (Done(1, b"", "vg: internal error: KeyError: 'a'\n", []), "internal"),
        (Done(65, b"", "Traceback (most recent call last):\nvg: x.npy: no\n", []), "internal"),
        (Done(-11, b"", "", []), "internal"),
        (Done(None, b"", "", []), "hang"),
        (Done(130, b"", "vg: x.npy: stopped\n", []), "exit"),
    ],
)
def test_verdicts(done: Done, verdict: str) -> None:
    assert fault_of(done, names=["x.npy"])[0] == verdict


def test_trees_are_compared_by_name_and_content() -> None:
    assert difference({"a": "1", "b": "2"}, {"a": "1", "b": "2"}) == ""
    found = difference({"a": "1", "c.tmp": "2"}, {"a": "2", "b": "2"})
    assert found == "missing: b; left over: c.tmp; changed: a"
    assert (
        litter({"a": "1", "c.tmp": "2", "d.lock": "3", "e.tmp.x": "4"}) == "c.tmp, d.lock, e.tmp.x"
    )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(number=st.integers(0, 10**6), data=st.data())
def test_mutations_repeat_and_never_fail(number: int, data: st.DataObject) -> None:
    good = data.draw(st.sampled_from(GOOD))
    for mutation in FORMATS[good[0]]:
        bad = mutated(good[1], mutation.__name__, number, "salt")
        assert bad == mutated(good[1], mutation.__name__, number, "salt")
        assert bad is None or isinstance(bad, bytes)


GOOD = [
    ("jsonl", b'{"a": [1, {"b": "c"}]}\n{"a": []}\n'),
    ("json", b'{"a": {"b": [1, 2.5, null]}}'),
    ("text", b"one 1\ntwo 2\n"),
    ("table", b"a\t1\nb\t2\n"),
    ("xml", b"<a><b>5</b></a>"),
    ("ids", b"x\ny\n"),
    ("gz", b"\x1f\x8b\x08\x00"),
]


def test_a_resealed_run_has_the_seal_of_a_run(artefacts: Path) -> None:
    good = (artefacts / "lm/run.json").read_bytes()
    assert json.loads(mutations.reseal_run(good) or b"") == json.loads(good)


def test_every_way_of_every_file_changes_it(artefacts: Path) -> None:
    for case in CASES:
        for file, form in (place.split() for place in case.reads):
            good = (artefacts / file).read_bytes()
            ways = {m.__name__ for m in FORMATS[form.rstrip("!")]}
            changed = {w for w in ways if mutated(good, w, random.Random(w).randrange(99), file)}
            assert len(changed) > len(ways) / 2, (file, form, ways - changed)


def test_a_failure_makes_the_table_and_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outcomes = [Outcome("kills vokenize kill@1"), Outcome("kills vokenize kill@2", "hang", "why")]

    def run_all(*args: object) -> None:
        for outcome in outcomes:
            args[-1](outcome)  # type: ignore[operator]

    monkeypatch.setattr("tests.faults.run.run_all", run_all)
    assert main([]) == 1
    text = capsys.readouterr().out
    assert "hang: why\n    python -m tests.faults 'kills vokenize kill@2'\n" in text
    row = next(line.split() for line in text.splitlines() if line.startswith("kills vokenize"))
    assert row == ["kills", "vokenize", "2", "1", "-", "-", "1", "-", "-", "-", "-", "-"]
    outcomes.pop()
    assert main([]) == 0
