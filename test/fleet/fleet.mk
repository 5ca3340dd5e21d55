# The stand-ins for a cloud with GPU machines, for Cluster Autoscaler and for EKS, and kwok, which
# keeps the machines' nodes alive. The root Makefile includes this file; hack/scaleout.sh runs them.

.PHONY: fleet
fleet: $(CLUSTER) ## Build what plays cloud and Cluster Autoscaler: bin/fleet, bin/autoscaler-sim, bin/kwok, and the image of eks-sim
	$(COMPILE) go build -o bin/ ./test/fleet ./test/ekssim/cmd/eks-sim
	$(COMPILE) go build -o bin/autoscaler-sim ./test/autoscaler
	kwok=$$($(CLUSTER) tool kwok) && ln -sf "$$kwok" bin/kwok
	$(CLUSTER) image --name mica.local/eks-sim:dev --binary bin/eks-sim --entrypoint /usr/bin/eks-sim --out bin/eks-sim.tar

# With AUTOSCALER as hack/scaleout.sh has it.
.PHONY: test-scaleout
test-scaleout: ## Run the end-to-end tests of scale-out alone; AUTOSCALER=FILE: beside the real Cluster Autoscaler
	@E2E_FLAGS='-test.run ^TestScaleOut' hack/test.sh e2e
