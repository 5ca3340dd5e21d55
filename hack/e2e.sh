#!/usr/bin/env bash
# Runs the compiled end-to-end tests, or with -test.bench its benchmarks,
# against the cluster that `cluster run` has brought up around this script.
#
# MICA_E2E_PART=node runs the tests of the GPU node, which restart, fill and break it; `scaling` those of scaling out,
# KEDA and the API server's rules, beside test/fleet and KEDA. Each part has a cluster of its own. Unset: all tests on one.
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
part=${MICA_E2E_PART:-}
# A test of none of these names runs on the cluster of the node.
scaling='^Test(KEDA|Conformance|ScaleOut|ExamplesOfScaleOut|Headroom|HoldsOfADeadController|AStolenToken|ForgedPlaceholders|AlertsFire|PluginWrites|PluginLeaves|PluginHasNoOther|WorkloadExamples|EveryExample|CommandsOfTheDocs|DoctorFinds|HelmTest|OnAnOlder|EachRight|Uninstall)'
case $part in
node) chosen=(-test.skip "$scaling") ;;
scaling) chosen=(-test.run "$scaling") ;;
'') chosen=() ;;
*)
	echo "MICA_E2E_PART=$part is unknown: use node, scaling, or nothing for both" >&2
	exit 2
	;;
esac
# KEDA's tests let the controller ask the Prometheus that hack/keda.sh brings up.
hack/install.sh "${values[@]}" --set controller.keda.enabled=true,controller.keda.tls.requireClientCertificate=false,controller.keda.prometheus.triggers=true \
	--set controller.keda.prometheus.address="http://$MICA_NODE_IP:19090" \
	--set kubeletPlugin.healthQuietPeriod=5s
# Kinds of other projects, by whose schemas the API server checks the examples.
kubectl=$("$tool" tool kubectl)
"$kubectl" apply --server-side --filename bin/crds >/dev/null
"$kubectl" wait --for condition=Established --timeout 1m --filename bin/crds >/dev/null
beside=()
if [[ $part != node ]]; then
	"$tool" load bin/eks-sim.tar
	hack/keda.sh up
	beside=(hack/scaleout.sh bin/fleet-logs)
fi
export AUTOSCALER_FLAGS="--scan-interval=5s --scale-down-delay-after-add=0s"
mkdir -p bin/logs
tests=(env -C test/e2e "$PWD/bin/e2e.test" -test.timeout 30m "$@")
if [[ $* == *-test.bench* ]]; then
	exec "${beside[@]}" "${tests[@]}"
fi
# suite REPORT ARGUMENT... runs tests; what they say is in bin/logs/REPORT.json, too.
suite() {
	local report=bin/logs/$1.json
	shift
	"${beside[@]}" bin/gotestsum --format testname --hide-summary skipped --jsonfile "$report" \
		--raw-command -- go tool test2json -t -p test/e2e "${tests[@]}" "$@" -test.v=test2json
	if ! grep -q '"Action":"run"' "$report"; then
		echo "no end-to-end test has this name: look at -test.run in E2E_FLAGS" >&2
		exit 1
	fi
}

suite "e2e${part:+-$part}" "${chosen[@]}" "$@"
[[ $part == node || $* == *-test.@(run|skip|short|failfast|list)* ]] && exit
# The last ones look at what all have done, on both clusters, and take Mica away.
if [[ ${MICA_E2E_NODE_STATUS:-} ]]; then
	until [[ -s $MICA_E2E_NODE_STATUS ]]; do
		if ((SECONDS > 5400)); then
			echo "the tests of the node have not ended after 90 minutes" >&2
			exit 1
		fi
		sleep 1
	done
	if [[ $(<"$MICA_E2E_NODE_STATUS") != 0 ]]; then
		echo "the tests of the node failed, so TestEachRightIsUsed and TestUninstall do not run" >&2
		exit 1
	fi
fi
export MICA_E2E_LAST=1
suite last -test.run '^(TestEachRightIsUsed|TestUninstall)$'
# Each has passed, or skipped itself as it may.
for name in TestUninstall TestEachRightIsUsed; do
	if ! grep -q "\"Action\":\"\(pass\|skip\)\".*\"Test\":\"$name\"" bin/logs/last.json; then
		echo "$name did not run: see bin/logs/last.json" >&2
		exit 1
	fi
done
