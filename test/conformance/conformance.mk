# The tests of Kubernetes AI Conformance. The root Makefile includes this file; hack/conformance.sh runs them.

# Of the tests, such as '-pool KEY=VALUE'; as it was written.
override CONFORMANCE_FLAGS := $(value CONFORMANCE_FLAGS)
export CONFORMANCE_FLAGS

.PHONY: conformance
conformance: conformance-test ## Test the cluster of KUBECONFIG against Kubernetes AI Conformance (CONFORMANCE_FLAGS='-pool KEY=VALUE'); the report is in bin/conformance
	@hack/conformance.sh

.PHONY: conformance-test
conformance-test: gotestsum
	$(COMPILE) go test -c -tags conformance,$(TAGS) -o bin/conformance.test ./test/conformance

# For a cluster without a registry: an image with a shell, one of Kubernetes' resource-consumer, and one with the adapter.
.PHONY: conformance-images
conformance-images: $(CLUSTER)
	mkdir -p bin/conformance-images
	cd test/conformance/images && CGO_ENABLED=0 $(COMPILE) go build -o ../../../bin/conformance-images/ \
		mvdan.cc/sh/v3/cmd/gosh k8s.io/kubernetes/test/images/resource-consumer
	$(COMPILE) go build -o bin/conformance-images/ ./test/conformance/adapter
	cp -f bin/conformance-images/gosh bin/conformance-images/sh
	for name in sh resource-consumer adapter; do \
		$(CLUSTER) image --glibc --name "mica.local/$$name:dev" --binary "bin/conformance-images/$$name" --out "bin/conformance-images/$$name.tar"; \
	done
