# KEDA, Prometheus and what they need on the local cluster, in one image. The root Makefile
# includes this file; hack/keda.sh installs what it makes.

.PHONY: keda
keda: $(CLUSTER) ## Build KEDA, Prometheus, a DNS and vLLM's metrics into one image, and copy KEDA's manifests to bin/keda
	$(COMPILE) go build -o bin/ ./test/dns ./test/vllmsim
	$(COMPILE) go build -C test/redis -o ../../bin/ .
	binaries=(--binary bin/dns --binary bin/vllmsim --binary bin/redis); \
	for name in keda keda-adapter prometheus; do \
		binaries+=(--binary "$$($(CLUSTER) tool "$$name")"); \
	done; \
	$(CLUSTER) image --name mica.local/keda:dev "$${binaries[@]}" --out bin/keda.tar
	rm -rf bin/keda && mkdir -p bin/keda
	cp -r "$$(cd test/cluster/build/keda && go mod download github.com/kedacore/keda/v2 && go list -m -f '{{.Dir}}' github.com/kedacore/keda/v2)/config" bin/keda/config
	chmod -R u+w bin/keda/config
