# `make help` lists what there is.

CARGO ?= cargo
PREFIX ?= /usr/local
# The entry points of the fuzz targets, so that lints see them.
FUZZING = cloche-jail/fuzzing,cloche-interception/fuzzing,cloche-egress/fuzzing,cloche-layers/fuzzing,cloche-images/fuzzing,cloche-mounts/fuzzing,cloche-executor/fuzzing,cloche-gateway/fuzzing

HAS_NEXTEST = $(CARGO) nextest --version >/dev/null 2>&1
# The same as in .config/nextest.toml, for a host without nextest.
FAST_TESTS = conformance approvals executions tenancy providers sealing
HOST_TESTS = escape_core
HOST_TEST_NAMES = a_crash_in_a_sandbox_starts_no_handler_on_the_host

.DEFAULT_GOAL := help
.PHONY: help run console image test test-fast test-host check deny bench fuzz install uninstall \
	release deb oci check-packages vm clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: console ## build, start a server on 127.0.0.1:8080 and send a first request; its data is in cloche-data
	@scripts/build --profile quick --locked
	@scripts/run-server target/quick/cloche

console: ## build the console in the browser into console/dist, if its sources have changed
	scripts/build-console

image: ## build the default image (Python 3.14, Node 25) in target/images/default; needs root
	scripts/setup-image
	mkdir -p target/images
	images/default/build --output target/images/default $(IMAGE)

test-fast: ## unit tests and tests without cells: needs no root and no packages, takes less than a minute
	@if $(HAS_NEXTEST); then \
		$(CARGO) nextest run --workspace --profile fast; \
	else \
		$(CARGO) test --workspace --lib --bins && \
		$(CARGO) test --workspace $(foreach test,$(FAST_TESTS),--test $(test)); \
	fi

test: ## install what the tests need, then run every test but those of test-host
	scripts/setup-tests
	@if $(HAS_NEXTEST); then \
		$(CARGO) nextest run --workspace; \
	else \
		$(CARGO) test --workspace -- $(foreach name,$(HOST_TEST_NAMES),--skip $(name)); \
	fi

test-host: ## tests that change settings of this host for a moment, one at a time; needs root
	$(CARGO) test -p cloche $(foreach test,$(HOST_TESTS),--test $(test)) -- --test-threads 1

check: ## formatting, lints, the habits of the project, and its dependencies
	$(CARGO) fmt --check
	$(CARGO) fmt --check --manifest-path fuzz/Cargo.toml
	$(CARGO) clippy --workspace --all-targets --features $(FUZZING) -- -D warnings
	$(CARGO) run -q -p cloche-tidy
	@# In a clean clone ruff comes with `make test`, which runs it as a test.
	@if [ -x .venv/bin/ruff ]; then .venv/bin/ruff check --no-cache crates/executor/guest; fi
	scripts/check-dependencies

deny: ## licences, sources, bans and duplicate versions of all dependencies; builds cargo-deny once
	scripts/check-dependencies

bench: ## measure the numbers of docs/SPECIFICATION.md; BENCH="--rounds 50 --only python"
	$(CARGO) build --release --bin cloche
	$(CARGO) run --release -p cloche-bench -- $(BENCH)
	$(CARGO) bench -p cloche-gateway --bench added_latency
	$(CARGO) bench -p cloche-egress --bench network_path

fuzz: ## fuzz every reader of untrusted bytes for FUZZ_SECONDS each (60), and the random tests for longer
	scripts/fuzz
	PROPTEST_CASES=$${PROPTEST_CASES:-20000} $(CARGO) test --release -p cloche-jail random
	PROPTEST_CASES=$${PROPTEST_CASES:-20000} $(CARGO) test --release -p cloche-layers --test layers random_

install: ## install the binary, manual, completions and service below PREFIX (/usr/local)
	@scripts/install $(PREFIX)

uninstall: ## remove what `make install` installed below PREFIX; configuration and data stay
	@scripts/install --remove $(PREFIX)

release: ## a tarball with the binary, its bill of materials and checksums, in target/release-artifacts
	scripts/release

deb: ## the same, and a package for Debian 12 and later
	scripts/release deb

oci: ## the same, and an OCI image of the executor; needs the default image (make image)
	scripts/release oci

check-packages: ## install packages into fresh systems; PACKAGES="--previous-binary FILE"; needs root
	scripts/setup-tests
	@[ -n "$(CLOCHE_BINARY)" ] || scripts/build --profile dist --locked
	scripts/check-packages --binary $(or $(CLOCHE_BINARY),target/dist/cloche) $(PACKAGES)

vm: ## try the sandbox on another kernel with control groups v2, in a virtual machine
	scripts/vm-check

clean: ## remove everything that was built
	$(CARGO) clean
