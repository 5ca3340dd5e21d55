# Mica: build, test and try it. `make help` explains every target.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# go-nvml's header marks functions deprecated that its own wrappers call.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo development)
# grpc's tracing page brings html/template, with which the linker cannot drop
# unused methods: it costs 20 MB of a binary that never serves the page.
TAGS := grpcnotrace
LDFLAGS := -s -w -X main.linked=$(VERSION)

# The simulated machine of the local cluster: a file in test/nvmlsim/nodes.
NODE ?= p5.48xlarge
# `GPU=host` uses this machine's own NVIDIA driver instead.
GPU ?= sim

CLUSTER := bin/cluster
# Every test can run on the default machine; on another, what cannot is skipped.
export MICA_E2E_NO_SKIP := $(if $(filter sim/p5.48xlarge,$(GPU)/$(NODE)),1)
CLUSTER_HARDWARE := $(if $(filter host,$(GPU)),--gpu host,--sim-node test/nvmlsim/nodes/$(NODE).yaml)
IMAGE := mica.local/kubelet-plugin:dev
CONTROLLER_IMAGE := mica.local/controller:dev

include test/nvmlsim/nvmlsim.mk
include test/fleet/fleet.mk
include test/keda/keda.mk

# What needs a cluster first asks whether the machine can run one: a build takes
# minutes, and a missing compiler has a message of its own there.
NEED_CLUSTER := demo cluster-up test test-e2e bench
ifneq (,$(filter $(NEED_CLUSTER),$(MAKECMDGOALS)))
build lint test-unit nvml-sim fleet keda $(nvmlsim_files): | prerequisites
endif

.PHONY: help
help: ## Explain the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Try it

.PHONY: demo
demo: cluster-up ## Bring a real cluster up, install Mica, run a pod with a GPU claim and show what it got
	hack/demo.sh

.PHONY: prerequisites
prerequisites: $(CLUSTER) ## Say what this machine lacks for a cluster
	$(CLUSTER) check $(CLUSTER_HARDWARE)

.PHONY: cluster-up
cluster-up: prerequisites image nvml-sim ## Bring up a real one-machine cluster with simulated GPUs (NODE=..., GPU=host)
	$(CLUSTER) up $(CLUSTER_HARDWARE)

.PHONY: cluster-down
cluster-down: $(CLUSTER) ## Stop the cluster and remove everything that it made
	$(CLUSTER) down

##@ Build

.PHONY: build
build: ## Build the plugin with the CDI hook of its image, the controller and kubectl-gpu
	go build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/kubelet-plugin ./cmd/kubelet-plugin
	go build -trimpath -ldflags '-s -w' -o bin/nvidia-cdi-hook ./cmd/nvidia-cdi-hook
	go build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/controller ./cmd/controller
	go build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/kubectl-gpu ./cmd/kubectl-gpu

.PHONY: image
image: build $(CLUSTER) ## Assemble the images for the local cluster, without a container engine
	$(CLUSTER) image --name $(IMAGE) --binary bin/kubelet-plugin --binary bin/nvidia-cdi-hook \
		--entrypoint /usr/bin/kubelet-plugin --out bin/kubelet-plugin.tar
	$(CLUSTER) image --name $(CONTROLLER_IMAGE) --binary bin/controller --entrypoint /usr/bin/controller --out bin/controller.tar

.PHONY: $(CLUSTER)
$(CLUSTER):
	@command -v go >/dev/null || { echo "go: builds everything: install Go 1.26 or newer from https://go.dev/dl" >&2; exit 1; }
	cd test/cluster && go build -o ../../$(CLUSTER) .

.PHONY: generate
generate: ## Write generated files anew
	go generate ./...

##@ Test

.PHONY: test
test: prerequisites lint test-unit test-e2e ## Run every test: lint, unit and C ABI tests with the race detector, chart, end to end

.PHONY: lint
lint: $(CLUSTER) ## Check the code's style, its logging and the shell scripts
	hack/lint.sh

# The crash tests of a package take minutes, and several times that on a busy machine.
PATIENCE := 30m

# KEDA is large: what was compiled for the cluster is taken for the tests of its client.
LIKE_CLUSTER := CGO_ENABLED=0 GOFLAGS=-trimpath

.PHONY: test-unit
test-unit: $(CLUSTER) ## Run the tests that need no cluster, with the race detector
	HELM="$$($(CLUSTER) tool helm)" go test -race -timeout $(PATIENCE) ./...
	cd test/cluster && go test -race -timeout $(PATIENCE) ./...
	cd test/scheduler && go test ./...
	cd test/keda && $(LIKE_CLUSTER) go test ./...

.PHONY: test-e2e
test-e2e: prerequisites image nvml-sim fleet keda ## Run the end-to-end tests on a private cluster of their own
	go test -c -tags e2e -o bin/e2e.test ./test/e2e
	$(CLUSTER) run $(CLUSTER_HARDWARE) --logs bin/e2e-logs -- hack/e2e.sh

.PHONY: bench
bench: prerequisites image nvml-sim fleet keda ## Print the benchmarks' figures
	go test -run '^$$' -bench . -benchmem ./pkg/... ./cmd/controller/ ./test/bench/... ./test/crash/...
	go test -c -tags e2e -o bin/e2e.test ./test/e2e
	$(CLUSTER) run $(CLUSTER_HARDWARE) --logs bin/e2e-logs -- hack/e2e.sh -test.run '^$$' -test.bench .

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin
