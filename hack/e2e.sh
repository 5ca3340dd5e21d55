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
hack/install.sh "${values[@]}" --set controller.keda.enabled=true,controller.keda.tls.requireClientCertificate=false,controller.keda.prometheus.triggers=true \
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
# suite REPORT ARGUMENT... runs tests; what they say is in bin/logs/REPORT.json, too. gotestsum tells all failures by one
# status, so that of the tests is kept.
suite() {
	local report=bin/logs/$1
	shift
	rm -f "$report.exit"
	# shellcheck disable=SC2016  # the shell that runs the tests expands it
	hack/scaleout.sh bin/fleet-logs bin/gotestsum --format testname --hide-summary skipped --jsonfile "$report.json" \
		--raw-command -- go tool test2json -t -p test/e2e \
		sh -c '"$@"; status=$?; echo "$status" >"$0"; exit "$status"' "$report.exit" "${tests[@]}" "$@" -test.v=test2json
}

part=
[[ $* == *-test.@(run|skip|short|failfast|list)* ]] && part=1
again=()
if ! suite e2e "$@"; then
	mapfile -t again < <(sed -n 's/.*"Action":"fail".*"Test":"\([^"/]*\)".*/\1/p' bin/logs/e2e.json | sort -u)
	# 1 is that of tests that failed, not of a panic, a timeout or what they left behind.
	if [[ $part || $(<bin/logs/e2e.exit) != 1 ]] || ((${#again[@]} == 0 || ${#again[@]} > 2)); then
		exit 1
	fi
	printf '\n%s failed beside the others. Without them, once more:\n\n' "${again[*]}"
	suite again -test.run "^($(IFS='|' && echo "${again[*]}"))\$"
fi
if [[ ! $part ]]; then
	# The last ones look at what all have done, and take Mica away.
	export MICA_E2E_LAST=1
	suite last -test.run '^(TestEachRightIsUsed|TestUninstall)$'
	for name in TestUninstall ${MICA_E2E_NO_SKIP:+TestEachRightIsUsed}; do
		if ! grep -q "\"Action\":\"pass\".*\"Test\":\"$name\"" bin/logs/last.json; then
			echo "$name did not run: see bin/logs/last.json" >&2
			exit 1
		fi
	done
fi
if ((${#again[@]})); then
	printf '\nFLAKY: %s failed beside the others and passed without them: see bin/logs/e2e.json\n' "${again[*]}"
fi
