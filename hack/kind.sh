#!/usr/bin/env bash
# The end-to-end tests on kind, with the simulator of GPUs as an image on its node. It needs a Docker
# engine, and on kind's side nothing of this machine but that.
#
#   hack/kind.sh build             builds what the others need
#   hack/kind.sh up [KUBERNETES]   creates the cluster "mica" of a version in test/kind/images.txt
#   hack/kind.sh e2e [FLAG...]     runs the tests on it; flags are those of a test binary
#   hack/kind.sh down              deletes it
#
# KIND_NODE_IMAGE names another node image, such as one that was built on this machine.
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
	if [[ -n ${KIND_NODE_IMAGE:-} ]]; then
		echo "${KIND_NODE_IMAGE}"
		return
	fi
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

# engine IMAGE ends the script unless there is a Docker engine that can run a node of kind with the image.
engine() {
	local said
	said=$(docker version 2>&1 >/dev/null) ||
		fail "no Docker engine answers: start one, or use make test-e2e, which needs none: ${said%%$'\n'*}"
	docker image inspect "$1" >/dev/null 2>&1 || docker pull --quiet "$1" ||
		fail "the Docker engine does not get the node image $1: name one that it has in KIND_NODE_IMAGE, or use make kind-local, which needs no registry"
	# A node is a privileged container, and the simulator makes device nodes in it: 195 is NVIDIA's number.
	said=$(docker run --rm --privileged --network none --entrypoint mknod "$1" /probe c 195 255 2>&1) ||
		fail "the Docker engine has no right to run privileged containers that make device nodes: use one that runs as root of this machine, not rootless: ${said%%$'\n'*}"
}

# off prints the feature gates that the tests need and that the API server's metrics, its input, say are off.
off() { sed -n 's/^kubernetes_feature_enabled{name="\(DRADeviceTaints\|DRAExtendedResource\|DRAPartitionableDevices\|DRAConsumableCapacity\)".*} 0$/\1/p'; }

# exists ends the script unless there is a cluster that answers.
exists() {
	local said
	[[ -f ${state}/kubeconfig ]] || fail "no cluster: create it with make kind-up"
	said=$(kubectl get --raw /readyz 2>&1 >/dev/null) ||
		fail "the cluster does not answer: delete it with make kind-down and create it with make kind-up: ${said%%$'\n'*}"
}

# features ends the script unless the cluster has on what the tests need.
features() {
	local said gates
	exists
	said=$(kubectl get --raw /apis/resource.k8s.io/v1 2>&1 >/dev/null) ||
		fail "the cluster does not serve resource.k8s.io/v1: create one of Kubernetes 1.34 or newer with make kind-up: ${said%%$'\n'*}"
	gates=$(kubectl get --raw /metrics | off | sort -u | paste -s -d ' ')
	[[ -z ${gates} ]] || fail "the cluster has feature gates off that Mica's tests need: create one with ${gates} on, as make kind-up does"
}

build() {
	make --silent bin/cluster
	bin/cluster build kubernetes workload helm kwok prometheus keda
	make --silent e2e-parts kind-parts
}

up() {
	local version=${1:-1.37} simulator node
	config "${version}" >/dev/null
	node=$(image "${version}")
	engine "${node}"
	build
	mkdir -p "${state}/sim"
	config "${version}" | kind create cluster --config - --wait 3m
	features
	load bin/nvml-sim.tar bin/workload.tar
	simulator=$(<test/kind/simulator.yaml)
	echo "${simulator//NODE/${NODE:-p5.48xlarge}}" | kubectl apply --filename -
	kubectl --namespace mica-sim rollout status daemonset/nvml-sim --timeout 2m
}

# e2e runs the tests. Those in test/kind/skipped.txt skip themselves here, and no other may.
e2e() {
	features
	local skipped name
	skipped=$(grep -v '^#' test/kind/skipped.txt)
	MICA_E2E_MAY_SKIP=${skipped} CLUSTER_TOOL=$PWD/hack/kind.sh hack/e2e.sh "$@"
	[[ $* == *-test.* ]] && return
	for name in ${skipped}; do
		grep -q "\"Action\":\"skip\".*\"Test\":\"${name}\"" bin/logs/{e2e,last}.json ||
			fail "${name} did not skip itself: remove it from test/kind/skipped.txt"
	done
}

info() {
	local address machine
	exists
	address=$(kubectl get nodes --output 'jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}')
	machine=$(kubectl --namespace mica-sim get daemonset nvml-sim --output 'jsonpath={.spec.template.spec.containers[0].args[1]}')
	# No MICA_CLUSTER_DIR: there is no access to the node's own processes and files.
	printf 'export %s=%q\n' KUBECONFIG "${state}/kubeconfig" MICA_NODE_NAME "${name}-control-plane" MICA_NODE_IP "${address}" \
		MICA_KUBELET_ROOT /var/lib/kubelet MICA_CDI_ROOT /var/run/cdi MICA_DRIVER_ROOT /var/lib/mica-sim/driver \
		MICA_SIM_SOCKET "${state}/sim/sim.sock" MICA_E2E_SIM_NODE "${machine#--node=}" MICA_MPS_ROOT /var/lib/mica/mps
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
down)
	kind delete cluster --name "${name}"
	# kind leaves an empty one.
	rm -f "${state}/kubeconfig"
	;;
info | off | build) "$1" ;;
tool) exec bin/cluster "$@" ;;
config) config "${2:-1.37}" ;;
*)
	echo "usage: hack/kind.sh build | up [KUBERNETES] | e2e [FLAG...] | down | info -o env | load FILE... | tool NAME" >&2
	exit 2
	;;
esac
