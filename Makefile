# Two commands set everything up: `make demo` and `make test`. Neither needs root, a model hub or a GPU.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help install manpages demo test test-cpus test-cluster quick faults examples lint bench growth bench-gpu man docs dist sdist-check container-steps clean
help:
	@echo "make demo    install, then pictures for words from the embedded models and emoji (writes demo/)"
	@echo "make test    install, then run the tests"
	@echo "make test-cpus  the tests seven times: kernels of older x86 processors, 1, 2 and 4 threads"
	@echo "make test-cluster  the tests on a Ray cluster and an S3 server of this machine, with their packages (400 MB)"
	@echo "make quick   the tests without those marked slow"
	@echo "make faults  kills, full disks, bad and hostile inputs and races for every command (about 40 minutes)"
	@echo "make examples  every target of every examples/*/Makefile at toy size (30 minutes; EXAMPLES=\"xdbert:small …\" a part)"
	@echo "make lint    ruff, mypy, stale man pages"
	@echo "make bench   measure speed and memory against their targets"
	@echo "make growth  time and memory of commands at 100 to 10,000 rows (ROWS=\"1000 10000 100000\")"
	@echo "make bench-gpu  measure a GPU, in 9 minutes (GPU=\"--device cpu\" tries it without one)"
	@echo "make man     write man/*.1 from the commands' help"
	@echo "make docs    build the documentation site into build/site"
	@echo "make dist    build the wheel and the source archive, after make sdist-check"
	@echo "make container-steps   run the steps of the Containerfile in build/container (1 to 8 GB; STEPS=\"BACKEND=cpu EXTRAS=serve\")"
	@echo "make sdist-check   build the source archive, unpack it, run tests there"

install: $(READY)
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("vgtools needs Python 3.11 or newer; make PYTHON=python3.12 names one" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[clip,demo,dev,docs,parse]'
	@$(MAKE) --no-print-directory manpages
	@touch $@

# An editable install has no pages for man; links in the environment are found by its bin/ in PATH.
manpages:
	@mkdir -p $(VENV)/share/man/man1
	@for page in $(CURDIR)/man/*.1; do ln -sf "$$page" $(VENV)/share/man/man1/; done

demo: $(READY)
	@$(MAKE) --no-print-directory -C examples/vokenization demo VG=$(abspath $(BIN)/vg) DEMO=$(abspath demo)

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal

# Each run sets the kernels of torch, oneDNN, MKL, OpenBLAS and numpy. MKL_ENABLE_INSTRUCTIONS acts on Intel processors only;
# on AMD, MKL_CBWR=COMPATIBLE does.
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 OPENBLAS_CORETYPE=Haswell \
	NPY_DISABLE_CPU_FEATURES=X86_V4,AVX512_ICL
SSE4 := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 MKL_CBWR=COMPATIBLE \
	OPENBLAS_CORETYPE=Nehalem NPY_DISABLE_CPU_FEATURES=X86_V3,X86_V4,AVX512_ICL
test-cpus: $(READY)
	for settings in 'OMP_NUM_THREADS=1' 'OMP_NUM_THREADS=2' 'OMP_NUM_THREADS=4 MKL_DYNAMIC=FALSE' \
		'OMP_NUM_THREADS=1 $(AVX2)' 'OMP_NUM_THREADS=2 $(AVX2)' 'OMP_NUM_THREADS=1 $(SSE4)' 'OMP_NUM_THREADS=4 $(SSE4)'; do \
		echo "$$settings"; \
		env $$settings $(BIN)/python -m pytest -n auto --dist worksteal || exit 1; \
	done

# Nothing of it is a dependency of vg, so `make test` skips these tests where it is not installed.
test-cluster: $(VENV)/.cluster
	$(BIN)/python -m pytest -rs tests/batch tests/io/test_remote.py tests/commands/test_finetune_ray.py
$(VENV)/.cluster: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test-cluster]'
	@touch $@

quick: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

faults: $(READY)
	$(BIN)/python -m tests.faults $(FAULTS)

examples: $(READY)
	$(BIN)/python -m tests.examples $(EXAMPLES)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python man/build.py --check

bench: $(READY)
	$(BIN)/python tests/benchmarks/run.py

growth: $(READY)
	$(BIN)/python tests/benchmarks/growth.py $(if $(ROWS),--rows $(ROWS))

# Without network or packages: python3 tests/benchmarks/gpu.py, with any Python that has torch and transformers.
bench-gpu: $(READY)
	$(BIN)/python tests/benchmarks/gpu.py $(GPU)

man: $(READY)
	$(BIN)/python man/build.py

# Strict: a link that leads nowhere, or a page that is not in the navigation, is an error.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -q -f docs/mkdocs.yml

dist: sdist-check
	$(BIN)/python -m build

# The archive holds every tracked file but the configuration of continuous integration, and its tests run where it is unpacked.
SDIST       := build/sdist
SDIST_TESTS ?= tests/test_layers.py tests/test_sizes.py tests/test_wording.py tests/commands/test_build_index.py tests/commands/test_show.py
sdist-check: $(READY)
	rm -rf $(SDIST) vgtools.egg-info/SOURCES.txt  # setuptools would add the files that it lists
	$(BIN)/python -m build --sdist --no-isolation --outdir $(SDIST) . > /dev/null
	tar -xzf $(SDIST)/*.tar.gz -C $(SDIST) --strip-components 1
	@for file in $$(git ls-files ':!.ci' ':!.gitignore'); do test -f "$(SDIST)/$$file" || missing="$$missing $$file"; done; \
	  test -z "$$missing" || { echo "MANIFEST.in leaves out:$$missing" >&2; exit 1; }
	cd $(SDIST) && PYTHONPATH=$(abspath $(SDIST)) $(abspath $(BIN))/python -m pytest -m "not slow" $(SDIST_TESTS)
	cd $(SDIST) && $(MAKE) --no-print-directory -n -C examples/vokenization demo > /dev/null

# BACKEND= takes PyTorch from the same place as all other packages.
container-steps:
	rm -rf build/container && $(PYTHON) -m tests.containers build/container $(STEPS)

clean:
	rm -rf build dist demo *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
