# Mica: build, test and try it. `make help` explains every target.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The same for every go command, those that build the cluster included
# (test/cluster/internal/build), so that each package is compiled once.
TAGS := netgo,osusergo,grpcnotrace
export GOFLAGS := -buildvcs=false -trimpath -tags=netgo,osusergo,grpcnotrace
# go-nvml's header marks functions deprecated that its own wrappers call.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations
# Collecting garbage takes a third of a compiler's time. Below the limit there is none.
COMPILE := GOGC=off GOMEMLIMIT=2GiB

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo development)
LDFLAGS := -s -w -X main.linked=$(VERSION)

# The simulated machine of the local cluster: a file in test/nvmlsim/nodes.
NODE ?= p5.48xlarge
# `GPU=host` uses this machine's own NVIDIA driver instead.
GPU ?= sim
export NODE GPU

CLUSTER := bin/cluster
# As it was written: make would take the end of a pattern, a dollar sign, for a variable.
override E2E_FLAGS := $(value E2E_FLAGS)
export E2E_FLAGS
# Every test can run on the default machine; on another, what cannot is skipped.
export MICA_E2E_NO_SKIP := $(if $(filter sim/p5.48xlarge,$(GPU)/$(NODE)),1)
export CLUSTER_HARDWARE := $(if $(filter host,$(GPU)),--gpu host,--sim-node test/nvmlsim/nodes/$(NODE).yaml)
IMAGE := mica.local/kubelet-plugin:dev
CONTROLLER_IMAGE := mica.local/controller:dev

include test/nvmlsim/nvmlsim.mk
include test/fleet/fleet.mk
include test/keda/keda.mk
include test/kind/kind.mk
include test/crds/crds.mk
include test/conformance/conformance.mk

.PHONY: help
help: ## Explain the targets
	@while IFS= read -r line; do \
		if [[ $$line =~ ^([a-z0-9-]+):.*\#\#\ (.*) ]]; then printf '  %-16s %s\n' "$${BASH_REMATCH[1]}" "$${BASH_REMATCH[2]}"; fi; \
	done < <(cat $(MAKEFILE_LIST))

##@ Try it

.PHONY: demo
demo: ## Bring a real cluster up, install Mica, run a pod with a GPU claim and show what it got
	@hack/demo.sh

.PHONY: cluster-up
cluster-up: ## Bring up a real one-machine cluster with simulated GPUs (NODE=..., GPU=host)
	@hack/demo.sh --cluster-only

.PHONY: cluster-down
cluster-down: $(CLUSTER) ## Stop the cluster and remove everything that it made
	$(CLUSTER) down

# A warning, such as a link that leads to no page, ends the build.
SITE := --config docs/site/hugo.yaml --noBuildLock --panicOnWarning

##@ Build

.PHONY: build
build: cdi-hook ## Build the plugin with the CDI hook of its image, the controller and kubectl-gpu
	@mkdir -p bin
	$(COMPILE) go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/kubelet-plugin ./cmd/controller ./cmd/kubectl-gpu

# The hook runs on the host, with a C library of any age or none. It is static although its
# modules need cgo: they link NVML's loader, which no hook uses and the linker warns of.
CDI_HOOK ?= bin/nvidia-cdi-hook
.PHONY: cdi-hook
cdi-hook:
	$(COMPILE) go build -ldflags '-s -w -linkmode external -extldflags "-static"' -o $(CDI_HOOK) ./cmd/nvidia-cdi-hook

.PHONY: image
image: build $(CLUSTER) ## Assemble the images for the local cluster, without a container engine
	$(CLUSTER) image --name $(IMAGE) --binary bin/kubelet-plugin --binary bin/nvidia-cdi-hook \
		--entrypoint /usr/bin/kubelet-plugin --out bin/kubelet-plugin.tar
	$(CLUSTER) image --name $(CONTROLLER_IMAGE) --binary bin/controller --entrypoint /usr/bin/controller --out bin/controller.tar

.PHONY: $(CLUSTER)
$(CLUSTER):
	@mkdir -p bin
	cd test/cluster && CGO_ENABLED=0 $(COMPILE) go build -o ../../$(CLUSTER) .

.PHONY: generate
generate: ## Write generated files anew
	go generate ./...

# The files beside the images; those are built from deployments/container/Dockerfile.
.PHONY: release
release: ## Make the files of a release, twice, and compare: VERSION=v1.2.3
	@hack/release.sh --twice "$(VERSION)"

.PHONY: docs
docs: $(CLUSTER) ## Build the documentation as a site into bin/docs
	"$$($(CLUSTER) tool hugo)" $(SITE) --destination bin/docs --cleanDestinationDir

.PHONY: docs-serve
docs-serve: $(CLUSTER) ## Show the documentation as a site, and follow changes
	"$$($(CLUSTER) tool hugo)" server $(SITE) --renderToMemory

.PHONY: screenshots
screenshots: image nvml-sim ## Make the documentation's pictures of the terminal anew, on a cluster of their own
	$(CLUSTER) run $(CLUSTER_HARDWARE) -- hack/screenshots.sh

##@ Test

.PHONY: test
test: ## Run every test, unit tests with the race detector and end to end; with CI=true also lint
	@hack/test.sh unit e2e

.PHONY: test-fast
test-fast: ## Run the unit tests of all packages, without race detector, root or cluster
	@hack/test.sh fast

.PHONY: test-unit
test-unit: ## Run the tests that need no cluster, with the race detector
	@hack/test.sh unit

.PHONY: test-e2e
test-e2e: ## Run the end-to-end tests on private clusters of their own
	@hack/test.sh e2e

DRIVER_ROOT ?= /
.PHONY: test-driver
test-driver: ## Test the plugin on the idle GPUs of the NVIDIA driver below DRIVER_ROOT (/), without a cluster
	go test -count=1 -v -run '^TestADriver$$' ./test/crash -driver-root=$(abspath $(DRIVER_ROOT))

.PHONY: lint
lint: $(CLUSTER) ## Check the code's style, its logging and the shell scripts
	hack/lint.sh

.PHONY: fuzz
fuzz: ## Run every fuzz target for a minute (FUZZ_TIME=1m)
	@hack/fuzz.sh $(FUZZ_TIME)

.PHONY: bench
bench: ## Print the benchmarks' figures
	@hack/test.sh bench

# What the end-to-end tests run on a cluster, beside Mica.
.PHONY: e2e-parts
e2e-parts: image nvml-sim fleet keda crds conformance-test conformance-images
	$(COMPILE) go test -c -tags e2e,$(TAGS) -o bin/e2e.test ./test/e2e

# What runs tests and writes what they say into bin/logs.
.PHONY: gotestsum
gotestsum:
	go build -modfile hack/tools/go.mod -o bin/gotestsum gotest.tools/gotestsum

.PHONY: environment
environment: ## Print the environment in which go commands share the build cache with these targets
	@printf 'export %s=%q\n' GOFLAGS "$$GOFLAGS" CGO_CFLAGS "$$CGO_CFLAGS"

CACHE = $(or $(MICA_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/mica)

.PHONY: clean
clean: ## Remove what was built into this checkout; what the cluster runs stays in the cache
	rm -rf bin

.PHONY: clean-all
clean-all: cluster-down clean ## End the cluster, and remove also the cache of what it runs, which all checkouts share
	rm -rf "$(CACHE)"
