#!/usr/bin/env bash
# Brings what the conformance tests need up in the local cluster that runs now, or takes it away: their images, which
# `make conformance-images` builds, and a stand-in for an adapter of custom metrics.
#
#   hack/custom-metrics.sh up|down
set -euo pipefail
cd "$(dirname "$0")/.."
tool=${CLUSTER_TOOL:-bin/cluster}

cluster=$("$tool" info -o env)
eval "$cluster"
export KUBECONFIG
kubectl=$("$tool" tool kubectl)

# The API is there only while something answers: others' discovery would fail, and no namespace could be deleted.
up() {
	"$tool" load bin/conformance-images/*.tar
	"$kubectl" apply --filename test/conformance/adapter.yaml
	"$kubectl" --namespace custom-metrics wait --for condition=Available --timeout 2m deployment/adapter
	"$kubectl" apply --filename test/conformance/apiservice.yaml
	"$kubectl" wait --for condition=Available --timeout 2m --filename test/conformance/apiservice.yaml
}

down() {
	"$kubectl" delete --ignore-not-found --filename test/conformance/apiservice.yaml
	"$kubectl" delete --ignore-not-found --wait=false --filename test/conformance/adapter.yaml
}

case ${1:-} in
up | down) "$1" ;;
*)
	echo "usage: hack/custom-metrics.sh up|down" >&2
	exit 2
	;;
esac
