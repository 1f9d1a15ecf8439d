# make          build skiff, kubectl and the container runtime into bin/
# make runtime  build containerd, its shim, runc and the pause image   make images  build the images tests run
# make up       build, start a cluster, apply the demo, show it        make down    stop it
# make release  the files of a release in dist/: archives, Debian packages, images, SBOMs and checksums for amd64 and arm64
# make test     everything that must hold: lint, unit tests, race detector, fuzz targets, end-to-end, comparison with upstream
# make quickstart  what README.md says under Start, word for word, in namespaces of its own
# make test-cold   both on a clean clone with empty caches, as on a new machine
# make unit     unit tests alone, as any user
# make attack DURATION=30m   attacks on a running server; SKIFF_HOSTILE_SEED repeats a run, SKIFF_HOSTILE_ONLY makes one attack alone
# make chaos DURATION=1h     servers and agents under faults; SKIFF_CHAOS_SEED repeats a run, SKIFF_CHAOS_ONLY=leader selects faults by their names
# make churn DURATION=1h SERVERS=3   everything created and deleted, round after round: nothing may be left behind or grow
# make differential CLUSTERS=1000   the scheduler's decisions beside upstream's, on random clusters
# make test-vm  skiff as a service on virtual machines with Debian 12 and 13: storage, static pods, reboots, power cuts, other addresses, the distribution's
#               container runtime, firewalls, the Debian package (SKIFF_VM_TOOLS: see test/vm/run; TESTS='service ufw/trixie')
# make bench    skiff and upstream side by side, with ratios
# make conformance CLASS=api|node-hollow|node|net|multi-node|all   or   FOCUS='regular expression' (LABELS= for tests outside the conformance suite, REAL=1 for a real node, NODES=2 for two, SERVERS=3 for three servers)
#               FOCUS='Driver: csi-hostpath' LABELS='(!Slow && !Serial && !Disruptive && Feature: isEmpty)' REAL=1 deploys a CSI driver, whose images are built for it

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

# Everything is compiled with the same flags, so that programs, tests and comparisons share one build cache. Debugging information takes
# the compiler a seventh of its time, and nothing here keeps it: programs are linked with -s -w, and go test strips its own.
BUILDFLAGS := -trimpath -gcflags=all=-dwarf=false
export GOFLAGS := $(filter-out $(BUILDFLAGS),$(shell go env GOFLAGS)) $(BUILDFLAGS)

# The version is the newest tag's; a tree without tags is a development version.
VERSION := $(shell git describe --tags --match 'v[0-9]*' 2>/dev/null || echo v0.1.0-dev)
COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
DATE    := $(shell git log -1 --format=%cI 2>/dev/null || echo 1970-01-01T00:00:00Z)
LDFLAGS := -s -w -X skiff/internal/version.skiff=$(VERSION:v%=%) -X skiff/internal/version.commit=$(COMMIT) -X skiff/internal/version.date=$(DATE)

# kubectl reports the version of the module it is built from.
KUBECTL_VERSION := v1.37.1
KUBECTL_LDFLAGS := -s -w -X k8s.io/component-base/version.gitVersion=$(KUBECTL_VERSION) \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37

CLASS ?= api
FOCUS ?=
LABELS ?= Conformance
PROCS ?= 4
BENCH ?=

.PHONY: build skiff kubectl runtime demo images up down release prepare programs test test-cold quickstart test-vm unit race race-compile checks e2e attack chaos churn lint vuln generate bench conformance fuzz \
	differential openapi h2spec clean

# step prints what is built and how long it took.
step := @scripts/step
# background is for what runs beside tests that wait: it takes the time that they leave. Compilers are faster when they collect less garbage.
background := nice -n 19
compile := $(background) env GOGC=400

build: skiff kubectl runtime

skiff:
	$(step) 'build skiff' go build -ldflags '$(LDFLAGS)' -o bin/skiff ./cmd/skiff
	@CGO_ENABLED=0 go build -ldflags '-s -w' -o bin/skiff-cni ./cmd/skiff-cni

# Built once: it changes only with its module.
kubectl: bin/kubectl
bin/kubectl: tools/kubectl/go.mod tools/kubectl/go.sum tools/kubectl/main.go
	@mkdir -p bin
	$(step) 'build kubectl' go -C tools/kubectl build -ldflags '$(KUBECTL_LDFLAGS)' -o ../../bin/kubectl .

# Built once: they change only with their modules and with what of them is our own.
IMAGE_SOURCES := tools/image/main.go tools/archive/image.go tools/archive/tar.go
RUNTIME := bin/containerd bin/containerd-shim-runc-v2 bin/runc bin/pause.tar
runtime: $(RUNTIME)
$(RUNTIME) &: runtime/go.mod runtime/go.sum runtime/build runtime/pause/pause.c runtime/shim/main.go $(IMAGE_SOURCES)
	$(step) 'build the container runtime' runtime/build bin
	@touch $(RUNTIME)

# The demo's image: its program and nothing else. The program alone is the client that make up shows the Service with.
demo: bin/demo.tar bin/web
bin/demo.tar bin/web &: demo/web/main.go $(IMAGE_SOURCES)
	@mkdir -p bin
	@CGO_ENABLED=0 go build -ldflags '-s -w' -o bin/web ./demo/web
	$(step) 'build the demo image' go run ./tools/image localhost/skiff/demo:1 bin/web bin/demo.tar

images:
	@test/images/build

up: build demo
	@scripts/up

down:
	@scripts/down

# The files of a release, from a commit: their bytes depend on nothing but it and the version of Go and of the C compiler. Programs are linked
# statically.
RELEASE_ARCHITECTURES := amd64 arm64
DIST ?= dist
MAINTAINER ?= $(shell git log -1 --format='%an <%ae>' 2>/dev/null)
release: export MAINTAINER := $(MAINTAINER)
release:
	@[ -z "$$(git status --porcelain --untracked-files=no)" ] || { echo 'a release is made from a commit: commit your changes first' >&2; exit 1; }
	@rm -rf '$(DIST)'
	@for arch in $(RELEASE_ARCHITECTURES); do \
		scripts/step "build for linux/$$arch" env CGO_ENABLED=0 GOARCH=$$arch go build -buildvcs=false -ldflags '$(LDFLAGS) -buildid=' \
			-o bin/linux-$$arch/ ./cmd/skiff ./cmd/skiff-cni ./demo/web; \
		scripts/step "container runtime for linux/$$arch" runtime/build bin/linux-$$arch $$arch; \
	done
	$(step) 'package the release' go run ./tools/release -version '$(VERSION)' -commit '$(COMMIT)' -date '$(DATE)' -maintainer "$$MAINTAINER" \
		-modules "$$(go env GOMODCACHE)" -goroot "$$(go env GOROOT)" -out '$(DIST)' $(foreach arch,$(RELEASE_ARCHITECTURES),$(arch)=bin/linux-$(arch))
	@(cd '$(DIST)' && sha256sum --quiet -c SHA256SUMS && ls -l)

# What tests download, and skiff's packages, which most of them are compiled from.
prepare:
	$(step) 'prepare: modules, skiff' test/prepare modules

# What tests start: upstream's programs, images, helm, an operator, the container runtime and kubectl.
programs:
	$(step) 'upstream programs, images' $(compile) test/prepare programs
	@$(compile) $(MAKE) --no-print-directory build demo

# Two steps at a time: tests, which often wait, and beside them what only computes. Nothing runs beside attacks.
test: prepare
	@$(MAKE) --no-print-directory -j2 unit programs
	@$(MAKE) --no-print-directory -j2 e2e checks FUZZTIME=10s
	@$(MAKE) --no-print-directory -j2 race differential openapi h2spec vuln CLUSTERS=150
	@$(MAKE) --no-print-directory attack

test-cold:
	$(step) 'quick start and test with empty caches' scripts/test-cold

# The dependencies are those of up.
quickstart: build demo
	$(step) 'what the README says' go test -vet=off -count=1 -v ./test/quickstart

unit:
	$(step) 'unit tests' go test -vet=off ./internal/... ./cmd/... ./tools/...

# Hosts of their own, which are slow without hardware virtualization: not part of make test.
TESTS ?=
test-vm: build demo
	$(step) 'tests on virtual machines' test/vm/run $(TESTS)

# Attacks on a running server, the last of them random clients beside a normal load for DURATION. Nothing else runs meanwhile: it measures latency.
DURATION ?= 3m
attack: build
	$(step) 'attacks' env SKIFF_HOSTILE_DURATION=$(DURATION) go test -vet=off -count=1 -timeout 90m ./test/attack

# Servers and agents under faults, for DURATION. It measures how fast the API responds after the loss of the leader: nothing else should run meanwhile.
chaos: build
	$(step) 'faults' env SKIFF_CHAOS_DURATION=$(DURATION) go test -vet=off -count=1 -v -timeout 0 -run '^TestFaults$$' ./test/chaos

# Everything that a cluster runs is created and deleted, for DURATION, in a cluster with one server or several.
SERVERS ?=
churn: DURATION = 15m
churn: build
	$(step) 'churn' env SKIFF_CHURN_DURATION=$(DURATION) SKIFF_CHURN_SERVERS=$(SERVERS) go test -vet=off -count=1 -v -timeout 0 -run '^TestChurn$$' ./test/churn

# What runs concurrently, under the race detector.
RACE := store/... apiserver/... http2 controller scheduler/... kubelet/... client
race:
	$(step) 'unit tests under the race detector' go test -vet=off -race -short -timeout 20m $(RACE:%=./internal/%)

# What only computes, one after the other.
checks:
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory race-compile
	@$(MAKE) --no-print-directory fuzz

# Compiles what race tests.
race-compile:
	$(step) 'compile for the race detector' $(compile) scripts/compile -race $(RACE:%=./internal/%)

# Real processes on loopback: skiff, kubectl, and upstream's programs to compare with (built on the first run). Tests with servers of their
# own run six at a time, because they mostly wait.
e2e: build demo
	$(step) 'end-to-end tests' go test -vet=off -parallel 6 -timeout 30m $$(go list ./test/... | grep -v /attack)

# The scheduler's decisions beside those of upstream's own code, on random clusters; schemas and validation of custom resources.
CLUSTERS ?= 1000
differential:
	$(step) 'scheduling decisions beside upstream' $(background) go -C test/differential test -mod=mod -vet=off -count=1 -timeout 30m -v . -clusters $(CLUSTERS)
	$(step) 'custom resources beside upstream' $(background) go -C test/differential test -mod=mod -vet=off -count=1 -timeout 30m ./customresources
	$(step) 'assigned CPUs and memory beside upstream' $(background) go -C test/differential test -mod=mod -vet=off -count=1 -timeout 30m ./assignments

# The OpenAPI definitions beside those of upstream.
openapi:
	$(step) 'OpenAPI documents beside upstream' go -C test/upstream test -vet=off ./...

# The conformance suite of HTTP/2 servers against internal/http2.
h2spec:
	$(step) 'HTTP/2 conformance (h2spec)' go -C test/h2spec test -mod=mod -vet=off -count=1 ./...

# The tests' own go test commands vet nothing again. Unit tests that need root have the build tag root; test/node runs them.
lint:
	@unformatted=$$(gofmt -l cmd internal test tools runtime); [ -z "$$unformatted" ] || { echo "not gofmt-ed:"; echo "$$unformatted"; exit 1; }
	$(step) 'go vet and staticcheck' $(compile) scripts/lint

# Known vulnerabilities in what is linked; without access to the database it says so and passes.
vuln:
	$(step) 'govulncheck' scripts/vuln

generate:
	go generate ./...

bench: build
	go run ./test/bench $(BENCH)

conformance: build
	@mkdir -p bin
	@go build -o bin/conformance ./test/conformance
	@exec bin/conformance $(if $(REAL),-real) $(if $(NODES),-nodes $(NODES)) $(if $(SERVERS),-servers $(SERVERS)) -class '$(CLASS)' -focus '$(FOCUS)' -labels '$(LABELS)' -procs $(PROCS)

# Each fuzz target for FUZZTIME; as unit tests they run on their seeds.
FUZZTIME ?= 10m
fuzz:
	$(step) 'fuzz targets, $(FUZZTIME) each' $(background) scripts/fuzz $(FUZZTIME)

clean:
	rm -rf bin dist test/conformance/results
