#!/usr/bin/env bash
# Brings KEDA up in the local cluster that runs now, with a Prometheus that scrapes vLLM's
# metrics and a Redis, or takes all of it away again:
#
#   hack/keda.sh up|down
#
# `make keda` builds what it installs. It runs in the namespace keda; Prometheus serves at port
# 19090 of the node.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=${CLUSTER_TOOL:-bin/cluster}

cluster=$("$tool" info -o env)
eval "$cluster"
export KUBECONFIG
kubectl=$("$tool" tool kubectl)

manifests() {
	local text
	text=$("$kubectl" kustomize test/keda)
	echo "${text//NODE_IP/$MICA_NODE_IP}"
}

# diagnose says what a reader of a failure would ask for.
diagnose() {
	echo "KEDA does not come up. Its pods, what is wrong with them, and what they say:" >&2
	"$kubectl" --namespace keda get pods,secrets --output wide >&2 || true
	"$kubectl" --namespace keda get events --field-selector type=Warning >&2 || true
	"$kubectl" get apiservice v1beta1.external.metrics.k8s.io --output jsonpath='{.status.conditions}{"\n"}' >&2 || true
	local app
	for app in keda-operator keda-metrics-apiserver dns prometheus redis vllmsim; do
		"$kubectl" --namespace keda logs --selector app="$app" --prefix --tail 10 >&2 || true
	done
}

up() {
	[[ -f bin/keda.tar && -d bin/keda/config ]] || { echo "bin/keda.tar or bin/keda/config is missing: run \`make keda\` first" >&2; exit 1; }
	"$tool" load bin/keda.tar
	trap diagnose ERR
	manifests | "$kubectl" apply --server-side --force-conflicts --filename - >/dev/null
	local wait=("$kubectl" --namespace keda wait --timeout 4m)
	# The operator makes its certificates, and then waits until kubelet has put them into its
	# files: that takes a minute or more, unless the pod changes.
	"${wait[@]}" --for create secret/kedaorg-certs >/dev/null
	"${wait[@]}" --for jsonpath='{.data.tls\.crt}' secret/kedaorg-certs >/dev/null
	"$kubectl" --namespace keda annotate pods --all --overwrite e2e.mica.gpu/certificates=made >/dev/null
	"${wait[@]}" --for condition=Available deployments --all
	"${wait[@]}" --for condition=Available apiservice/v1beta1.external.metrics.k8s.io
}

# KEDA has to run to release its objects, and there are none before its CRDs. While an API that it
# should serve does not answer, no namespace can be deleted.
down() {
	local kinds
	kinds=$("$kubectl" get --ignore-not-found --output name customresourcedefinitions scaledobjects.keda.sh scaledjobs.keda.sh)
	if [[ -n ${kinds} ]]; then
		"$kubectl" delete scaledobjects,scaledjobs --all-namespaces --all --timeout 1m
	fi
	"$kubectl" delete apiservice v1beta1.external.metrics.k8s.io --ignore-not-found
	manifests | "$kubectl" delete --ignore-not-found --timeout 2m --filename -
}

case ${1:-} in
up | down) "$1" ;;
*)
	echo "usage: hack/keda.sh up|down" >&2
	exit 2
	;;
esac
