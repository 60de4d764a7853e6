"""The Containerfile: its steps are parsed and run in a folder, and name what there is."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.containers import ROOT, Machine, steps

SMALL = """
# a comment
FROM base AS build
ARG NAME=one
WORKDIR /src
COPY LICENSE pyproject.toml ./
COPY .github/workflows flows
RUN mkdir -p /opt/made && \\
    echo "${NAME:+name} $NAME" > /opt/made/name

FROM base
COPY --from=build /opt/made /opt/made
ENV PATH=/opt/made:$PATH
WORKDIR /work
ENTRYPOINT ["sh", "-c"]
CMD ["pwd; cat ../opt/made/name; echo $PATH; echo ${NAME-unset}"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base" / "bin").mkdir(parents=True)
    return tmp_path


def test_steps_run_in_a_folder(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    machine = Machine(folder, {"NAME": "two"})
    machine.run(SMALL)
    said = capfd.readouterr().out.splitlines()[-4:]
    assert said[:2] == [str(folder / "work"), "name two"]
    assert said[2].startswith(f"{folder}/opt/made:{folder}/base/bin:")
    assert said[3] == "unset", "a stage starts without the arguments of the other"
    assert (folder / "src" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert (folder / "src" / "flows" / "test.yml").is_file()


def test_a_step_that_fails_ends_it(folder: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        Machine(folder).run("FROM base\nRUN false; true\nRUN touch /work/late\n")
    assert not (folder / "work").exists()


def test_the_containerfile_names_what_there_is() -> None:
    text = (ROOT / "Containerfile").read_text()
    words = [word for word, _ in steps(text)]
    assert words.count("FROM") == 2
    assert {*words} <= {name[1:].upper() for name in vars(Machine) if name[0] == "_"}
    for word, rest in steps(text):
        if word == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)
        sources = rest.split()[:-1] if word == "COPY" else []
        here = [one for one in sources if not sources[0].startswith("--from")]
        assert all((ROOT / one).exists() for one in here)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.search(r"^ARG EXTRAS=(.*)$", text, re.M)
    assert extras is not None
    assert {*extras[1].split(",")} <= {*project["optional-dependencies"]}
    assert re.search(r"^ENTRYPOINT \[\"vg\"\]$", text, re.M)
    assert "vg" in project["scripts"]
    bases = {
        tuple(map(int, found)) for found in re.findall(r"^FROM python:(\d+)\.(\d+)-", text, re.M)
    }
    assert len(bases) == 1, "both stages have one Python: the environment links to it"
    least = tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))
    assert bases.pop() >= least
