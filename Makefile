# make          build skiff, kubectl and the container runtime into bin/
# make runtime  build containerd, its shim, runc and the pause image   make images  build the images tests run
# make up       build, start a cluster, apply the demo, show it        make down   stop it
# make test     everything that must hold: lint, unit, end-to-end and comparison with upstream
# make differential CLUSTERS=1000   the scheduler's decisions beside upstream's, on random clusters
# make bench    skiff and upstream side by side, with ratios
# make conformance CLASS=api|node-hollow|node|net|multi-node|all   or   FOCUS='regular expression'

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
DATE    := $(shell git log -1 --format=%cI 2>/dev/null || echo 1970-01-01T00:00:00Z)
LDFLAGS := -s -w -X skiff/internal/version.commit=$(COMMIT) -X skiff/internal/version.date=$(DATE)

# kubectl reports the version of the module it is built from.
KUBECTL_VERSION := v1.37.1
KUBECTL_LDFLAGS := -s -w -X k8s.io/component-base/version.gitVersion=$(KUBECTL_VERSION) \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37

CLASS ?= api
FOCUS ?=
PROCS ?= 4
BENCH ?=

.PHONY: build skiff kubectl runtime demo images up down test unit e2e lint generate bench conformance fuzz clean

build: skiff kubectl runtime

skiff:
	@go build -trimpath -ldflags '$(LDFLAGS)' -o bin/skiff ./cmd/skiff
	@CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/skiff-cni ./cmd/skiff-cni

# Built once: it changes only with its module.
kubectl: bin/kubectl
bin/kubectl: tools/kubectl/go.mod tools/kubectl/go.sum tools/kubectl/main.go
	@echo 'building kubectl ...'
	@mkdir -p bin
	@cd tools/kubectl && go build -trimpath -ldflags '$(KUBECTL_LDFLAGS)' -o ../../bin/kubectl .

# Built once: they change only with their modules and with what of them is our own.
RUNTIME := bin/containerd bin/containerd-shim-runc-v2 bin/runc bin/pause.tar
runtime: $(RUNTIME)
$(RUNTIME) &: runtime/go.mod runtime/go.sum runtime/build runtime/pause/pause.c runtime/image/main.go runtime/shim/main.go
	@runtime/build bin
	@touch $(RUNTIME)

# The demo's image: its program and nothing else.
demo: bin/demo.tar
bin/demo.tar: demo/web/main.go runtime/image/main.go
	@mkdir -p bin
	@CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/web ./demo/web
	@cd runtime && go run ./image localhost/skiff/demo:1 ../bin/web ../bin/demo.tar
	@rm bin/web

images:
	@test/images/build

up: build demo
	@scripts/up

down:
	@scripts/down

test: lint unit e2e
	@$(MAKE) --no-print-directory differential CLUSTERS=150

unit:
	go test ./internal/... ./cmd/...

# Real processes on loopback: skiff, kubectl, and upstream's programs to compare with (built on the first run).
e2e: build demo
	go test -timeout 30m ./test/...

# The scheduler's decisions beside those of upstream's own code, on random clusters.
CLUSTERS ?= 1000
differential:
	cd test/differential && go test -mod=mod -count=1 -timeout 30m -v . -clusters $(CLUSTERS)

lint:
	@unformatted=$$(gofmt -l cmd internal test tools runtime); [ -z "$$unformatted" ] || { echo "not gofmt-ed:"; echo "$$unformatted"; exit 1; }
	go vet ./...
	go tool -modfile=tools/lint/go.mod staticcheck ./...

generate:
	go generate ./...

bench: build
	go run ./test/bench $(BENCH)

conformance: build
	go run ./test/conformance $(if $(REAL),-real) -class '$(CLASS)' -focus '$(FOCUS)' -procs $(PROCS)

# Each fuzz target for FUZZTIME; in `make test` they run on their seeds.
FUZZTIME ?= 10m
fuzz:
	@scripts/fuzz $(FUZZTIME)

clean:
	rm -rf bin test/conformance/results
