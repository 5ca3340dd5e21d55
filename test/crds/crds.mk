# The kinds of other projects that the examples use. The root Makefile includes this file; hack/e2e.sh
# installs what it copies.

# crd copies a file of a module's directory.
crd = cp -f "$$(go list -m -f '{{.Dir}}' $(1))/$(2)" ../../bin/crds/

.PHONY: crds
crds: ## Copy the CustomResourceDefinitions of the examples' kinds from their modules to bin/crds
	rm -rf bin/crds && mkdir -p bin/crds
	cd test/crds && go mod download sigs.k8s.io/lws sigs.k8s.io/jobset sigs.k8s.io/gateway-api sigs.k8s.io/gateway-api-inference-extension && \
	$(call crd,sigs.k8s.io/lws,config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml) && \
	$(call crd,sigs.k8s.io/jobset,config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml) && \
	$(call crd,sigs.k8s.io/gateway-api,config/crd/standard/gateway.networking.k8s.io_gateways.yaml) && \
	$(call crd,sigs.k8s.io/gateway-api,config/crd/standard/gateway.networking.k8s.io_httproutes.yaml) && \
	$(call crd,sigs.k8s.io/gateway-api-inference-extension,config/crd/bases/inference.networking.k8s.io_inferencepools.yaml)
	chmod -R u+w bin/crds
