# Every target sets up what it needs; `make` alone lists them.
PY := .venv/bin/python
ARGS ?=
# Test processes: most tests wait for sockets, so one more than there are cores.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.DEFAULT_GOAL := help
.PHONY: help up test check fix lock bench soak mutants

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

up: ## everything on a fresh machine: environment, database, demo data, relay on 127.0.0.1:8000
	@scripts/make-env.sh requirements/embedded.lock
	@exec $(PY) manage.py serve --demo --with-parent $(ARGS)

test: ## the whole test suite, on SQLite and an embedded Valkey unless DATABASE_URL and REDIS_URL say otherwise
	@scripts/make-env.sh requirements/dev.lock
	@exec $(PY) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

check: ## lint, format, types, import rules, missing migrations
	@scripts/make-env.sh requirements/dev.lock
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports
	$(PY) manage.py makemigrations --check --dry-run --settings=tests.settings

fix: ## mend what the linter and the formatter can
	@scripts/make-env.sh requirements/dev.lock
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: ## requests/s, added latency and events/s against nginx (needs nginx and wrk)
	@scripts/make-env.sh requirements/dev.lock
	@exec $(PY) bench/run.py

soak: ## minutes of load outside the tests: streams, slow readers, hang-ups, a large configuration, kills
	@scripts/make-env.sh requirements/dev.lock
	@$(PY) bench/streams.py
	@$(PY) bench/snapshot_size.py
	@exec $(PY) bench/kill_rounds.py

mutants: ## change the core modules line by line and see which changes the tests miss (minutes)
	@scripts/make-env.sh requirements/dev.lock
	@RELAY_WIRE_DIR=$${RELAY_WIRE_DIR:-$(abspath ../shared/wire)} $(abspath .venv/bin/mutmut) run $(ARGS)
	@.venv/bin/mutmut results

lock: ## compile the locks from requirements/*.in (needs uv); no other target changes them
	scripts/make-locks.sh
