#!/usr/bin/env bash
# Runs the compiled end-to-end tests, or with -test.bench its benchmarks,
# against the cluster that `cluster run` has brought up around this script.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=${CLUSTER_TOOL:-bin/cluster}

cluster=$("$tool" info -o env)
eval "$cluster"
export KUBECONFIG MICA_DRIVER_ROOT MICA_SIM_SOCKET MICA_NODE_IP
export MICA_PLUGIN_BINARY=$PWD/bin/kubelet-plugin MICA_KUBECTL_GPU=$PWD/bin/kubectl-gpu
MICA_HELM=$("$tool" tool helm)
MICA_PROMTOOL=$("$tool" tool promtool)
export MICA_HELM MICA_PROMTOOL

# Of the controller. EKS and EC2 Auto Scaling are simulated in a pod of a test, at this address;
# the simulator looks at no credentials.
declare -A environment=(
	[EKS_ENDPOINT]="http://$MICA_NODE_IP:18600" [AWS_ENDPOINT_URL_AUTO_SCALING]="http://$MICA_NODE_IP:18600"
	[AWS_REGION]=sim-1 [AWS_EC2_METADATA_DISABLED]=true
	# A controller that was killed is replaced sooner than by default.
	[LEADER_ELECT_LEASE_DURATION]=5s [LEADER_ELECT_RENEW_DEADLINE]=4s [LEADER_ELECT_RETRY_PERIOD]=1s
	[AWS_ACCESS_KEY_ID]=simulated [AWS_SECRET_ACCESS_KEY]=simulated
)
values=()
for name in "${!environment[@]}"; do
	i=$((${#values[@]} / 4))
	values+=(--set "controller.env[$i].name=$name" --set-string "controller.env[$i].value=${environment[$name]}")
done
# KEDA's tests let the controller ask the Prometheus that hack/keda.sh brings up.
hack/install.sh "${values[@]}" --set controller.keda.enabled=true \
	--set controller.keda.prometheus.address="http://$MICA_NODE_IP:19090" \
	--set kubeletPlugin.healthQuietPeriod=5s
"$tool" load bin/eks-sim.tar
# Kinds of other projects, by whose schemas the API server checks the examples.
kubectl=$("$tool" tool kubectl)
"$kubectl" apply --server-side --filename bin/crds >/dev/null
"$kubectl" wait --for condition=Established --timeout 1m --filename bin/crds >/dev/null
hack/keda.sh up
export AUTOSCALER_FLAGS="--scan-interval=5s --scale-down-delay-after-add=0s"
tests=(env -C test/e2e "$PWD/bin/e2e.test" -test.timeout 30m "$@")
if [[ $* == *-test.bench* ]]; then
	exec hack/scaleout.sh bin/fleet-logs "${tests[@]}"
fi
hack/scaleout.sh bin/fleet-logs bin/gotestsum --format testname --hide-summary skipped --jsonfile bin/logs/e2e.json \
	--raw-command -- go tool test2json -t -p test/e2e "${tests[@]}" -test.v=test2json
if [[ $* != *-test.run* ]]; then
	# The last one takes Mica away.
	exec bin/gotestsum --format testname --jsonfile bin/logs/uninstall.json --raw-command -- go tool test2json -t -p test/e2e \
		env MICA_E2E_UNINSTALL=1 "${tests[@]}" -test.run '^TestUninstall$' -test.v=test2json
fi
