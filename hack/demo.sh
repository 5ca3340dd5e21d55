#!/usr/bin/env bash
# Brings the local cluster up, installs Mica into it, runs a pod with a ResourceClaimTemplate and
# shows the GPU that its container got. `make demo` and, with --cluster-only, `make cluster-up` run
# it.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/steps.sh

read -ra hardware <<<"${CLUSTER_HARDWARE}"
if [[ ${1:-} == --cluster-only ]]; then
	begin cluster-up
else
	begin demo
fi
step "machine" hack/check.sh --gpu "${GPU}"
step "cluster tool" make --silent bin/cluster
show "cluster binaries" bin/cluster build
step "Mica and its images" make --silent image nvml-sim
step "cluster" bin/cluster up "${hardware[@]}"
cluster=$(bin/cluster info -o env)
eval "$cluster"
export KUBECONFIG
if [[ ${1:-} == --cluster-only ]]; then
	finished
	echo "export KUBECONFIG=$KUBECONFIG; hack/install.sh installs Mica; \`make cluster-down\` ends the cluster"
	exit
fi
step "Mica on the cluster" hack/install.sh

kubectl=$(bin/cluster tool kubectl)
# What fails from here on is a pod that does not run.
trap 'explain_failure' ERR
explain_failure() {
	{
		echo
		"$kubectl" get pods --all-namespaces
		"$kubectl" get events --all-namespaces --field-selector type=Warning | tail -n 5
		echo "The demo stopped at what is above. The cluster runs on: logs are in $MICA_LOGS; \`make cluster-down\` ends it."
	} >&2
}
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say "The node's GPUs, as the scheduler sees them:"
"$kubectl" get resourceslices -o jsonpath='{range .items[*].spec.devices[?(@.attributes.type.string=="gpu")]}{.name}{"\t"}{.attributes.productName.string}{"\t"}{.capacity.memory.value}{"\t"}NUMA {.attributes.resource\.kubernetes\.io/numaNode.int}{"\n"}{end}'

say "The MIG partitions that they could be divided into instead (places on all GPUs, profile):"
"$kubectl" get resourceslices -o jsonpath='{range .items[*].spec.devices[?(@.attributes.type.string=="mig")]}{.attributes.profile.string}{"\t"}{.capacity.memory.value}{"\n"}{end}' | sort | uniq -c

say "The shares that several claims could have of them instead (GPUs, how, memory to share):"
"$kubectl" get resourceslices -o jsonpath='{range .items[*].spec.devices[?(@.allowMultipleAllocations==true)]}{.attributes.type.string}{"\t"}{.capacity.memory.value}{"\n"}{end}' | sort | uniq -c

say "A pod with a ResourceClaimTemplate (examples/pod-with-template.yaml):"
hack/apply.sh examples/pod-with-template.yaml
"$kubectl" wait --for=condition=Ready pod/gpu-pod --timeout=2m

say "Who has which GPU (kubectl gpu list):"
bin/kubectl-gpu list

say "What its container sees:"
"$kubectl" logs gpu-pod

say "A pod that asks for 80Gi of memory, which no H100 has, and a group of H200 that could grow:"
"$kubectl" apply -f - <<END
apiVersion: mica.gpu/v1alpha1
kind: GPUNodeGroup
metadata: {name: h200}
spec:
  provider: {eks: {nodegroup: h200}}
  instanceType: p5e.48xlarge
  pairing: observe
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: large}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: gpu.nvidia.com
          selectors:
          - cel: {expression: 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0'}
---
apiVersion: v1
kind: Pod
metadata: {name: large}
spec:
  containers: [{name: main, image: "mica.local/workload:dev", resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimTemplateName: large}]
END
"$kubectl" wait --for=jsonpath='{.status.conditions[?(@.type=="mica.gpu/ScaleUp")].status}'=False pod/large --timeout=1m

say "Why it waits (kubectl gpu explain pod/large):"
bin/kubectl-gpu explain pod/large
"$kubectl" delete pod/large gpunodegroup/h200 resourceclaimtemplate/large --wait=false >/dev/null

say "The cluster keeps running. What to try next:"
cat <<END
  export KUBECONFIG=$KUBECONFIG PATH=${kubectl%/*}:$PWD/bin:\$PATH
  kubectl get resourceslices                        what the node publishes
  hack/apply.sh examples/mig-partition.yaml         a partition, made when the claim is prepared
  kubectl get resourceclaims -o wide                which pod got what
  ls examples; kubectl gpu --help                   more ways to ask, and what else there is to see
  make cluster-down                                 ends the cluster and leaves nothing
END
finished
