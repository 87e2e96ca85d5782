FUZZTIME  ?= 10s
BENCHTIME ?= 1s
COUNT     ?= 1

.PHONY: help build test thorough soak race asan bench benchmarks-doc figures fuzz cover lint modules abi-check kernels docs gpu-bundle gpu-test gpu-sanitize api-diff release-check

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-14s %s\n", $$1, $$2}' Makefile

# The figures of vmmbench name the commit. Empty, what Go has recorded is taken.
build: commit = $(shell git describe --always --dirty 2>/dev/null)
build: ## compile everything, and the commands into bin/
	go build ./...
	go build -ldflags "-X main.commit=$(commit)" -o bin/ ./cmd/...

test: ## vet, and the quick suite: every rule, fault and model, in short runs
	go vet ./...
	go test -vet=off -short ./...

thorough: ## every test, at full length
	go test -vet=off -timeout 20m ./...

MODULES = $(patsubst %/go.mod,%,$(wildcard examples/*/go.mod))
modules: ## tidy, vet and test the examples that are modules of their own
	set -e; for module in $(MODULES); do \
		echo "-- $$module"; \
		go -C $$module mod tidy -diff; \
		go -C $$module vet ./...; \
		go -C $$module test ./...; \
	done

soak: ## every test, and for long those that can run for long (VMM_SOAK=1)
	VMM_SOAK=1 go test -tags invariants -count=1 -timeout 60m ./...

# In short runs: thorough has the length. Not for vmmbench, which runs code whose own tests are here, nor
# for what has no second goroutine: its arithmetic, its reports, the formats of traces, the documents.
# Tests start many processes: each waits 20 ms when it ends, in place of a second, for a late report of a race.
race: ## the quick suite under the race detector, with internal/invariants on
	GORACE=atexit_sleep_ms=20 go test -vet=off -race -short -tags invariants $$(go list ./... | grep -v -e cmd/vmmbench$$ \
		-e cmd/vmmbench/internal/[bprs] -e internal/repochecks -e internal/trace$$ -e internal/docpictures)

# A loaded libcuda stays, and the leak detector does not see what Go alone
# points to. What leaks in the driver, the tests count.
asan: ## the quick suite of the CUDA binding on the fake driver under the address sanitizer
	ASAN_OPTIONS=detect_leaks=0 go test -vet=off -short -asan ./cgo/...

bench: ## Go benchmarks; compare two outputs with tools/bin/benchstat
	go test -run '^$$' -bench . -benchtime $(BENCHTIME) -count $(COUNT) ./...

SET = host
figures: build ## measure the figures of docs/benchmarks again, SET as in tools/figures; again if it says so
	tools/figures $(SET)
	$(MAKE) benchmarks-doc

benchmarks-doc: ## figures, pages and pictures of the documents, of docs/benchmarks/*.json
	go test ./cmd/vmmbench/internal/benchdoc -run TestDocument -update

fuzz: ## each fuzz target for FUZZTIME
	tools/fuzz $(FUZZTIME)

cover: ## coverage of all packages by all tests, into cover.out
	go test -coverpkg ./... -coverprofile cover.out ./...
	go tool cover -func cover.out | tail -n 1

# The second run sees what is built where there is neither Linux nor cgo, where that differs.
lint: tools/bin/golangci-lint ## golangci-lint, also for which package may import which
	tools/bin/golangci-lint run ./...
	packages=$$(GOOS=darwin tools/differing) && GOOS=darwin CGO_ENABLED=0 tools/bin/golangci-lint run $$packages
	set -e; for module in $(MODULES) tools/release; do (cd $$module && $(CURDIR)/tools/bin/golangci-lint run ./...); done

tools/bin/%: tools/go.mod tools/go.sum
	go build -C tools -o bin/ tool

# What only a release needs.
tools/release/bin/%: tools/release/go.mod tools/release/go.sum
	go build -C tools/release -o bin/ tool

release-check: ## all that a release has, into dist/, and checks of it; as root
	tools/release-check

api-diff: ## what the stable packages export, against the last tag or BASE=revision
	tools/api-diff $(BASE)

abi-check: ## our headers against others: NVIDIA's CUDA_H=path, OUT=file writes what it says; NCCL_H=path; DLPACK_H=path
	$(if $(CUDA_H)$(if $(NCCL_H)$(DLPACK_H),,x),tools/abi-check $(if $(OUT),-o "$(OUT)") "$(CUDA_H)")
	$(if $(NCCL_H),tools/abi-check-nccl "$(NCCL_H)")
	$(if $(DLPACK_H),cc -std=gnu11 -fsyntax-only -DDLPACK_H='"$(DLPACK_H)"' cgo/dlpack/abi/check.c)

kernels: ## vmm/kernel/device/builtin.ptx of its CUDA source; needs nvcc
	tools/kernels

# Debian's packages mkdocs, mkdocs-material and codespell are what it needs beside Go.
PAGES = README.md CONTRIBUTING.md CHANGELOG.md docs examples
docs: ## check the documents (words, links, names, snippets, spelling), and build their site into site/
	go test ./internal/repochecks ./internal/docpictures ./cmd/vmmbench/internal/benchdoc -run 'Words|Links|Names|Errors|Pages|Snippets|Pictures|Document'
	codespell --ignore-words tools/spelling.txt --skip '*.html,*.json,*.svg,*.css,*.go,*.sum,*.mod' $(PAGES)
	mkdocs build --quiet --strict --clean --site-dir site

gpu-bundle: ## compile tests and vmmbench into .gpu/, for a GPU machine
	tools/gpu-bundle

gpu-test: ## run .gpu/ on a GPU machine; needs no Go
	tools/gpu-test

gpu-sanitize: ## run kernels of .gpu/ under compute-sanitizer on a GPU machine, five minutes
	tools/gpu-sanitize
