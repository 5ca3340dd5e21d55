#!/usr/bin/env bash
# The end-to-end tests on kind, with the simulator of GPUs as an image on its node. It needs a Docker
# engine, and on kind's side nothing of this machine but that.
#
#   hack/kind.sh up [KUBERNETES]   creates the cluster "mica" of a version in test/kind/images.txt
#   hack/kind.sh e2e [FLAG...]     runs the tests on it; flags are those of a test binary
#   hack/kind.sh down              deletes it
#
# For hack/e2e.sh and what it calls it answers as bin/cluster does, about this cluster:
#
#   hack/kind.sh info -o env | load FILE... | tool NAME
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

state=$PWD/bin/kind
name=mica

fail() {
	echo "kind: $*" >&2
	exit 1
}

kind() { KUBECONFIG=${state}/kubeconfig bin/kind/kind "$@"; }
kubectl() { "$(bin/cluster tool kubectl)" --kubeconfig "${state}/kubeconfig" "$@"; }

image() {
	local version image
	while read -r version image; do
		if [[ ${version} == "$1" ]]; then
			echo "${image}"
			return
		fi
	done <test/kind/images.txt
	fail "there is no node image for Kubernetes $1: test/kind/images.txt has 1.34 to 1.37"
}

# What Mica uses and a version has off. A gate that a version does not know stops its components:
# pkg/features/kube_features.go of k8s.io/kubernetes has them by version.
gates() {
	case $1 in
	1.34) echo '{DRADeviceTaints: true, DRAExtendedResource: true, DRAPartitionableDevices: true, DRAConsumableCapacity: true, ResourceHealthStatus: true}' ;;
	1.35) echo '{DRADeviceTaints: true, DRADeviceTaintRules: true, DRAExtendedResource: true, DRAPartitionableDevices: true, DRAConsumableCapacity: true, ResourceHealthStatus: true}' ;;
	1.36) echo '{DRADeviceTaintRules: true}' ;;
	*) echo '{}' ;;
	esac
}

# config VERSION prints kind's configuration.
config() {
	local text
	text=$(<test/kind/cluster.yaml)
	text=${text//IMAGE/$(image "$1")}
	text=${text//GATES/$(gates "$1")}
	echo "${text//SIMULATOR/${state}/sim}"
}

up() {
	local version=${1:-1.37} simulator
	config "${version}" >/dev/null
	docker version >/dev/null 2>&1 || fail "no Docker engine answers: start one, or use make test-e2e, which needs none"
	make --silent bin/cluster
	bin/cluster build kubernetes workload helm kwok prometheus keda
	make --silent e2e-parts kind-parts
	mkdir -p "${state}/sim"
	config "${version}" | kind create cluster --config - --wait 3m
	load bin/nvml-sim.tar bin/workload.tar
	simulator=$(<test/kind/simulator.yaml)
	echo "${simulator//NODE/${NODE:-p5.48xlarge}}" | kubectl apply --filename -
	kubectl --namespace mica-sim rollout status daemonset/nvml-sim --timeout 2m
}

e2e() {
	CLUSTER_TOOL=$PWD/hack/kind.sh hack/e2e.sh "$@"
}

info() {
	[[ -f ${state}/kubeconfig ]] || fail "no cluster: create it with make kind-up"
	local address
	address=$(kubectl get nodes --output 'jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}')
	# No MICA_CLUSTER_DIR: tests that look at the node's own processes and files are skipped.
	printf 'export %s=%q\n' KUBECONFIG "${state}/kubeconfig" MICA_NODE_NAME "${name}-control-plane" MICA_NODE_IP "${address}" \
		MICA_KUBELET_ROOT /var/lib/kubelet MICA_CDI_ROOT /var/run/cdi MICA_DRIVER_ROOT /var/lib/mica-sim/driver \
		MICA_SIM_SOCKET "${state}/sim/sim.sock" MICA_MPS_ROOT /var/lib/mica-mps
}

load() {
	local archive
	for archive in "$@"; do
		kind load image-archive "${archive}" --name "${name}"
	done
}

case ${1:-} in
up | e2e | load)
	"$@"
	;;
down) kind delete cluster --name "${name}" ;;
info) info ;;
tool) exec bin/cluster "$@" ;;
config) config "${2:-1.37}" ;;
*)
	echo "usage: hack/kind.sh up [KUBERNETES] | e2e [FLAG...] | down | info -o env | load FILE... | tool NAME" >&2
	exit 2
	;;
esac
