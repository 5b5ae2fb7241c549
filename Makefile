# make run    builds, then has CPython fill and check a dict of hundreds of megabytes in
#             64 MB of frames, and compares the result
# make install  the programs into PREFIX/bin, library and systemd's units into PREFIX/lib: PREFIX=/usr/local, DESTDIR=
# make test   everything that must hold, quickly; what it needs from Debian is installed
#             or named
# make soak   the end-to-end tests at full size, hours of paging, not minutes; a server beside
#             100,000 changes of its clients' memory; then other programs' own test suites,
#             natively and paged
# make soak-cpython  one of these suites: stress-ng, cpython, redis, postgresql, chromium
# make fuzz   random programs over their address space, with the pager and without: FOR=8h,
#             JOBS=2, SEED=1; what differs is kept in target/fuzz
# make fuzz-daemon  everything hostile at once beside honest programs under a daemon: FOR=8h, SEED=1
# make test-kernels  the tests that depend on the kernel, in Debian's 6.1 and 6.12 under QEMU, with
#             control groups v2: ONLY=translation* for some of them; hours without KVM
# make bench  ours beside kernel swap, zram, mapped files and the bare device; all figures
#             and pictures of them in target/
# make bench-quick  what paging has to reach, at a quarter of the size, in two minutes
# make lint   format, lints and links of the documentation, warnings denied

CARGO  ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
# Which real program `make run` shows: sort, dict, sqlite, compile, redis, stress, threads.
JOB    ?= dict
# How long `make fuzz` runs, programs at a time, and the first seed (by the clock if none).
FOR    ?= 10m
JOBS   ?= 1
SEED   ?=

# Where `make install` puts what it installs.
PREFIX ?= /usr/local
UNITS   = $(wildcard daemon/units/* manager/units/*)

.PHONY: build run install test test-units test-interleavings test-programs test-kernels soak fuzz fuzz-daemon bench bench-quick lint tools rust

build: rust
	$(CARGO) build --release --locked --workspace

run: build
	$(TARGET)/release/workload $(JOB)

install: build
	install -D -t $(DESTDIR)$(PREFIX)/bin $(TARGET)/release/selfpage $(TARGET)/release/selfpage-bench
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib $(TARGET)/release/libselfpage_preload.so
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in $(UNITS); do \
		sed 's,=/usr/bin/,=$(PREFIX)/bin/,' $$unit > $(DESTDIR)$(PREFIX)/lib/systemd/system/$${unit##*/} || exit; \
	done

# All tests are built first. Then the three parts run beside each other: many tests wait for timeouts and not for
# processors.
test: tools build
	$(CARGO) test --locked --workspace --no-run
	@echo "unit tests, interleavings and end-to-end tests run beside each other: each part prints all at its end"
	$(MAKE) --no-print-directory --jobs 3 --output-sync=target test-units test-interleavings test-programs

test-units:
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-8} $(CARGO) test --locked --workspace --exclude selfpage-e2e

test-interleavings:
	LOOM_MAX_PREEMPTIONS=3 RUSTFLAGS="--cfg loom" $(CARGO) test --locked --release --target-dir $(TARGET)/loom -p selfpage -p iochannel --lib interleavings

test-programs:
	$(CARGO) test --locked -p selfpage-e2e

soak: tools build
	SELFPAGE_E2E_SIZE=full $(CARGO) test --locked -p selfpage-e2e
	SELFPAGE_TEST_CHANGES=100000 $(CARGO) test --locked -p space --test clients -- --nocapture every_fault
	e2e/suites/run --selfpage $(TARGET)/release/selfpage --logs $(TARGET)/suites

soak-%: build
	e2e/suites/run $* --selfpage $(TARGET)/release/selfpage --logs $(TARGET)/suites

test-kernels: build
	e2e/kernels/run $(if $(ONLY),--only '$(ONLY)')

fuzz: build
	$(TARGET)/release/selfpage-fuzz run --for $(FOR) --jobs $(JOBS) $(if $(SEED),--seed $(SEED)) --findings $(TARGET)/fuzz

fuzz-daemon: build
	SELFPAGE_FUZZ_FOR=$(FOR) SELFPAGE_FUZZ_SEED=$(or $(SEED),1) $(CARGO) test --locked -p daemon --test hostile -- --nocapture honest_programs

# What has to be reached first, then everything else with one thread.
bench: build
	$(TARGET)/release/selfpage bench paging --targets --json $(TARGET)/targets.json --svg $(TARGET)/targets.svg
	$(TARGET)/release/selfpage bench paging --json $(TARGET)/paging.json --svg $(TARGET)/paging.svg

bench-quick: build
	$(TARGET)/release/selfpage bench paging --targets --data 128 --frames 16 --accesses 6000 --repeats 3

lint: rust
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps

rust:
	@command -v $(CARGO) > /dev/null || { echo "cargo is missing: install Rust 1.90 or newer, https://rustup.rs"; exit 1; }
	@command -v cc > /dev/null || { echo "cc is missing: install a C compiler, e.g. apt-get install gcc libc6-dev"; exit 1; }

tools:
	@e2e/tools
