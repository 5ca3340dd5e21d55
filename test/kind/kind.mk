# The end-to-end tests on kind, which needs a Docker engine: hack/kind.sh. The root Makefile includes
# this file.

# The Kubernetes of the cluster: a version in test/kind/images.txt.
KUBERNETES ?= 1.37

.PHONY: kind-up
kind-up: ## Create a cluster of kind with simulated GPUs (KUBERNETES=1.37, a Docker engine)
	@hack/kind.sh up $(KUBERNETES)

.PHONY: kind-e2e
kind-e2e: ## Run the end-to-end tests on it
	@hack/kind.sh e2e $${E2E_FLAGS:-}

.PHONY: kind-down
kind-down: ## Delete it
	@hack/kind.sh down

.PHONY: kind-local
kind-local: ## Do the three without Docker and without a registry, with Kubernetes 1.37 (E2E_FLAGS=..., root, Debian's packages)
	@hack/kind-local.sh make --no-print-directory kind-up kind-e2e kind-down

# kind itself, and the images that only it needs: the simulator with its libraries, and the pods' program.
.PHONY: kind-parts
kind-parts: $(CLUSTER) nvml-sim gotestsum
	@mkdir -p bin/kind
	cd test/kind && CGO_ENABLED=0 $(COMPILE) go build -o ../../bin/kind/kind sigs.k8s.io/kind
	$(CLUSTER) image --name mica.local/nvml-sim:dev --entrypoint /usr/bin/nvml-sim --binary bin/nvml-sim \
		$(addprefix --binary ,$(nvmlsim_files) $(nvmlsim_mps)) --out bin/nvml-sim.tar
	$(CLUSTER) image --name mica.local/workload:dev --glibc --binary "$$($(CLUSTER) tool workload)" --out bin/workload.tar
