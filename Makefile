# Works with GNU make 3.81, which macOS ships. Needs Python 3.11 or newer; everything else is fetched into .venv.
# Every package is locked by hash in requirements/: uv.txt (the installer), run.txt (the command line and the
# build), dev.txt (everything for checks and tests), aws.txt (the AWS emulator, in an environment of its own),
# rie.txt (AWS' emulator of Lambda's runtime), lambda.txt (what the function's zip holds), container.txt (what the
# container's image holds), page.txt (what the page for browsers holds), bench.txt (what make bench compares with).
# What comes from npm's registry is locked in the package-lock.json of tests/browser, tools/page and tools/specification.

PYTHON ?=
ARGS ?=
ADD ?=
REQUIREMENTS ?=
ARCHITECTURE ?=
# Twice as many as two cores: tests wait for leases, servers and processes more than they compute.
JOBS ?= 4

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
UV := $(BIN)/uv
INSTALL := $(UV) pip install --quiet --python $(PY)

export UV_PYTHON_DOWNLOADS := never
# The machine's own certificates: behind a company proxy there are no others.
export UV_SYSTEM_CERTS := 1
export UV_NO_PROGRESS := 1
# Tests and commands see the installed wheel, not whatever the caller's shell puts in front of it.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

# What the function's zip is made for: tests/test_packaging.py holds deploy/template.yaml to it.
LAMBDA_PYTHON := 3.12
LAMBDA_PLATFORMS := x86_64-manylinux_2_28 aarch64-manylinux_2_28
# For one processor, by the name that AWS gives it.
PACKAGED := $(patsubst arm64,aarch64-manylinux_2_28,$(patsubst x86_64,x86_64-manylinux_2_28,$(ARCHITECTURE)))
PACKAGED := $(if $(PACKAGED),$(PACKAGED),$(LAMBDA_PLATFORMS))

# What the page's Python, of tools/page/package.json, takes: tools/page.py compares it.
PAGE_PYTHON := 3.14
PAGE_PLATFORM := pyemscripten_2026_0_wasm32

# Folders too, so that a deleted file counts as a change.
SOURCES := $(shell find src -name __pycache__ -prune -o -print) pyproject.toml README.md LICENSE
CHECKED := conftest.py deploy prove src tests tools $(wildcard bench) $(wildcard examples)

# A virtual environment that was moved, lost its Python or was made by another one is made again.
VENV_ID := $(CURDIR) $(PYTHON)
ifneq ($(shell test "`cat $(VENV)/.id 2>/dev/null`" = "$(strip $(VENV_ID))" && $(PY) -c 'print("works")' 2>/dev/null),works)
.PHONY: $(VENV)/.uv
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check format lock package layer page images sbom notices bench prove clean

help: ## List what make can do here
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  ARGS='...' is passed on to demo, test and bench; PYTHON=... chooses the Python."

demo: $(if $(findstring --console,$(ARGS)),$(VENV)/.all) $(VENV)/.wheel ## Run the whole bridge on this machine: simulated traffic, SQLite, live view (ARGS=--console: in a browser)
	@$(BIN)/oncebridge demo $(ARGS)

test: $(VENV)/.dev $(VENV)/.aws $(VENV)/.rie $(VENV)/.lambda $(VENV)/.page $(VENV)/.browser $(VENV)/.specification $(VENV)/.wheel ## Test the built wheel, on real servers that the tests start and end
	@$(BIN)/pytest -n $(JOBS) --dist loadgroup $(ARGS)

# Of what is delivered, and of what makes it. Bandit warns of each part of a line that a nosec was not needed for, so
# its warnings are shown only where it fails.
BANDIT := $(BIN)/bandit -q -c pyproject.toml -r conftest.py deploy src tools $(wildcard bench) -f custom \
	--msg-template "{relpath}:{line}: {test_id} {msg}"

check: $(VENV)/.dev ## Check format, lint, types, the AWS template, locks and licences, known vulnerabilities, and that no file names a package registry
	@$(BIN)/ruff format --check $(CHECKED)
	@$(BIN)/ruff check $(CHECKED)
	@$(BIN)/mypy --strict --python-executable $(PY) src tools deploy/container $(wildcard tests/typing)
	@$(BANDIT) 2> $(VENV)/bandit.log || { tail -n 3 $(VENV)/bandit.log; exit 1; }
	@$(BIN)/cfn-lint deploy/template.yaml
	@$(PY) tools/check_locks.py
	@$(PY) tools/third_party.py sbom dist/oncebridge-sbom.cdx.json
	@$(PY) tools/audit.py
	@$(PY) tools/check_hosts.py

format: $(VENV)/.dev ## Format the code and repair what lint can repair
	@$(BIN)/ruff format $(CHECKED)
	@$(BIN)/ruff check --fix $(CHECKED)

package: dist/.built $(VENV)/.lambda ## Make the zip for Lambda (ADD='app.py ...' REQUIREMENTS=requirements.txt: with your own)
	@$(if $(filter-out $(LAMBDA_PLATFORMS),$(PACKAGED)),echo "ARCHITECTURE=$(ARCHITECTURE) is unknown: give arm64 or x86_64" && exit 2)
	@rm -f dist/oncebridge-lambda.zip
	@$(if $(REQUIREMENTS),$(PY) tools/own_requirements.py $(REQUIREMENTS) --lock requirements/lambda.txt --wheel dist/*.whl \
		--python $(LAMBDA_PYTHON) --platforms $(PACKAGED) --into $(VENV)/own)
	@$(PY) tools/package.py dist/oncebridge-lambda.zip --wheel dist/*.whl --libraries $(PACKAGED:%=$(VENV)/lambda/%) \
		$(if $(REQUIREMENTS),--own $(PACKAGED:%=$(VENV)/own/%)) --add $(ADD)

layer: dist/.built $(VENV)/.lambda ## Make a layer for Lambda instead, for functions that bring their own code
	@$(PY) tools/package.py dist/oncebridge-layer.zip --layer --wheel dist/*.whl --libraries $(PACKAGED:%=$(VENV)/lambda/%)

page: dist/.built $(VENV)/.page ## Make dist/diagnose.html: diagnose and explain in a browser, from a file that needs no server
	@$(PY) tools/page.py dist/diagnose.html --package dist/*.whl --parts $(VENV)/page

images: $(VENV)/.uv ## Pin the images of Dockerfile and compose.yaml by digest, with Docker and the registries
	@$(PY) tools/images.py

sbom: $(VENV)/.dev ## Write what the zip and the image hold as CycloneDX, from the lock files
	@$(PY) tools/third_party.py sbom dist/oncebridge-sbom.cdx.json

notices: $(VENV)/.dev ## Write THIRD-PARTY.md: the licences of what the zip and the image hold
	@$(PY) tools/third_party.py notice

prove: $(VENV)/.dev $(VENV)/.aws $(VENV)/.rie $(VENV)/.bench $(VENV)/.wheel ## Attack it from outside and count what took effect (ARGS=--list: the parts)
	@PYTHONPATH=.:tests $(PY) -m prove $(ARGS)

bench: $(VENV)/.bench $(VENV)/.wheel ## Measure speed beside what one would write by hand
	@$(PY) bench/run.py $(ARGS)

COMPILE := $(UV) pip compile --quiet --python $(PY) --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)

lock: $(VENV)/.uv ## Lock the dependencies again after a change in pyproject.toml (UPGRADE=1: the newest of all)
	@$(COMPILE) --group bootstrap --output-file requirements/uv.txt
	@$(COMPILE) pyproject.toml --extra cli --group build --output-file requirements/run.txt
	@$(COMPILE) pyproject.toml --all-extras --group dev --constraint requirements/run.txt --output-file requirements/dev.txt
	@$(COMPILE) pyproject.toml --all-extras --group bench --constraint requirements/dev.txt --output-file requirements/bench.txt
	@$(COMPILE) --group aws --output-file requirements/aws.txt
	@$(COMPILE) --no-deps --group rie --output-file requirements/rie.txt
	@$(COMPILE) pyproject.toml --group lambda --constraint requirements/dev.txt --output-file requirements/lambda.txt
	@$(COMPILE) pyproject.toml --all-extras --constraint requirements/dev.txt --output-file requirements/container.txt
	@$(COMPILE) pyproject.toml --group page --constraint requirements/dev.txt --output-file requirements/page.txt
	@$(MAKE) --no-print-directory $(VENV)/.dev
	@for folder in tests/browser tools/page tools/specification; do $(PY) tools/npm.py $$folder || exit 1; done
	@$(PY) tools/check_hosts.py
	@echo "Locked. Next: make notices, and make test"

clean: ## Remove everything that make has made
	@rm -rf $(VENV) dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find $(CHECKED) -name __pycache__ -prune -exec rm -rf {} +

# The stamps below are files, so that a second run starts at once.

$(VENV)/.uv: requirements/uv.txt tools/find-python
	@python=`sh tools/find-python $(PYTHON)` && echo "Making $(VENV) with $$python" && "$$python" -m venv --clear $(VENV)
	@$(PY) -m pip install -qq --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@echo "$(strip $(VENV_ID))" > $(VENV)/.id
	@touch $@

$(VENV)/.run: requirements/run.txt $(VENV)/.uv
	@echo "Installing what Oncebridge needs"
	@$(INSTALL) --require-hashes -r requirements/run.txt
	@touch $@

$(VENV)/.all: requirements/container.txt $(VENV)/.run
	@echo "Installing what the console needs"
	@$(INSTALL) --require-hashes -r requirements/container.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.uv
	@echo "Installing what checks and tests need"
	@$(INSTALL) --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.bench: requirements/bench.txt $(VENV)/.dev
	@echo "Installing what is measured beside Oncebridge"
	@$(INSTALL) --require-hashes -r requirements/bench.txt
	@touch $@

$(VENV)/.aws: requirements/aws.txt $(VENV)/.uv
	@echo "Installing the AWS emulator"
	@$(PY) -m venv --clear $(VENV)/aws
	@$(UV) pip install --quiet --python $(VENV)/aws/bin/python --require-hashes -r requirements/aws.txt
	@touch $@

# Linux only, like the binary in it; the tests that need it are for Linux too.
$(VENV)/.rie: requirements/rie.txt $(VENV)/.uv
ifeq ($(shell uname -s),Linux)
	@echo "Installing AWS' emulator of Lambda's runtime"
	@rm -rf $(VENV)/rie
	@$(INSTALL) --target $(VENV)/rie --no-deps --require-hashes -r requirements/rie.txt
else
	@echo "Leaving out AWS' emulator of Lambda's runtime, which runs on Linux only"
endif
	@touch $@

$(VENV)/.lambda: requirements/lambda.txt $(VENV)/.uv
	@echo "Fetching what the function's zip holds"
	@rm -rf $(VENV)/lambda
	@for platform in $(LAMBDA_PLATFORMS); do $(INSTALL) --target $(VENV)/lambda/$$platform --python-platform $$platform \
		--python-version $(LAMBDA_PYTHON) --only-binary :all: --require-hashes -r requirements/lambda.txt || exit 1; done
	@touch $@

$(VENV)/.browser: tests/browser/package-lock.json $(VENV)/.dev
	@echo "Fetching what tests in a browser need"
	@PYTHONPATH=tests $(PY) -m servers.chromium
	@touch $@

prove: $(VENV)/.specification

$(VENV)/.specification: tools/specification/package-lock.json $(VENV)/.dev
	@echo "Fetching what checks the specification"
	@$(PY) tools/npm.py tools/specification --into $(VENV)/specification
	@touch $@

# By pip: uv knows no platform of this name.
$(VENV)/.page: requirements/page.txt tools/page/package-lock.json $(VENV)/.dev
	@echo "Fetching what the page for browsers holds"
	@$(PY) tools/npm.py tools/page --into $(VENV)/page
	@$(PY) -m pip download -qq --disable-pip-version-check --no-deps --only-binary :all: --platform $(PAGE_PLATFORM) \
		--python-version $(PAGE_PYTHON) --implementation cp --abi cp$(subst .,,$(PAGE_PYTHON)) --require-hashes \
		-r requirements/page.txt --dest $(VENV)/page/wheels
	@touch $@

dist/.built: $(SOURCES) $(VENV)/.run
	@echo "Building the wheel"
	@rm -rf dist
	@$(UV) build --quiet --wheel --no-build-isolation --python $(PY) --out-dir dist
	@touch $@

$(VENV)/.wheel: dist/.built
	@$(INSTALL) --no-deps --reinstall dist/*.whl
	@touch $@
