#!/usr/bin/env bash
# Runs a command beside a cloud with GPU machines and Cluster Autoscaler, or what stands in for
# them, against the cluster that KUBECONFIG names:
#
#   hack/scaleout.sh LOGS COMMAND [ARGUMENT...]
#
# kwok, fleet and autoscaler-sim log into the directory LOGS and end with the command, whose
# status is that of the script. The command finds the cloud at $MICA_FLEET, and MICA_REAL_AUTOSCALER
# set if the autoscaler is no stand-in.
#
#   FLEET_FLAGS       more flags of fleet, such as --whole-plugins=4
#   AUTOSCALER        the real Cluster Autoscaler: the path of a cluster-autoscaler binary with the
#                     AWS provider (docs/project/development.md says how to build one). "off": none is started
#   AUTOSCALER_FLAGS  more flags of either, such as --scan-interval=5s
set -euo pipefail
cd "$(dirname "$0")/.."

logs=${1:?"usage: hack/scaleout.sh LOGS COMMAND [ARGUMENT...]"}
shift
mkdir -p "${logs}"
logs=$(realpath "${logs}")
children=()

# stop ends the command first, which may still want the others.
stop() {
	local child
	for ((child = ${#children[@]} - 1; child >= 0; child--)); do
		kill "${children[child]}" 2>/dev/null || true
	done
	wait || true
}
trap stop EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# start NAME COMMAND... runs a command with a log of that name, which ends with this script,
# however that ends.
start() {
	local name=$1
	shift
	setpriv --pdeathsig TERM "$@" >"${logs}/${name}.log" 2>&1 &
	children+=($!)
}

# With leases as kubelets have them: without, every node is NotReady for a moment each 50 s.
start kwok bin/kwok --config test/fleet/kwok.yaml --kubeconfig "${KUBECONFIG:?names the cluster}" \
	--node-lease-duration-seconds 40 \
	--manage-nodes-with-annotation-selector kwok.x-k8s.io/node=fake --cidr 10.93.0.0/16 --node-ip 10.93.255.1

address=${logs}/fleet.address
rm -f "${address}"
# shellcheck disable=SC2086  # several flags
start fleet bin/fleet --listen 127.0.0.1:0 --address-file "${address}" ${FLEET_FLAGS:-}
for _ in {1..100}; do
	[[ -s ${address} ]] && break
	kill -0 "${children[-1]}" 2>/dev/null || break
	sleep 0.1
done
if [[ ! -s ${address} ]]; then
	echo "fleet does not serve: see ${logs}/fleet.log, which ends with:" >&2
	tail -n 5 "${logs}/fleet.log" >&2
	exit 1
fi
MICA_FLEET=$(<"${address}")
export MICA_FLEET

# real_autoscaler FLAG... starts Cluster Autoscaler, for which fleet is AWS. It calls what its
# configuration names, but for the instance types, for which it asks the SDK's usual address of EC2
# when it starts.
real_autoscaler() {
	local config=${logs}/aws.conf service
	for service in autoscaling ec2 eks; do
		printf '[ServiceOverride "%s"]\nService=%s\nRegion=sim-1\nURL=%s\nSigningRegion=sim-1\nSigningName=%s\n' \
			"${service}" "${service}" "${MICA_FLEET}/aws/${service}" "${service}"
	done >"${config}"
	start autoscaler env AWS_ENDPOINT_URL_EC2="${MICA_FLEET}/aws/ec2" AWS_REGION=sim-1 \
		AWS_ACCESS_KEY_ID=simulated AWS_SECRET_ACCESS_KEY=simulated AWS_EC2_METADATA_DISABLED=true \
		"${AUTOSCALER}" --kubeconfig "${KUBECONFIG}" --leader-elect=false --address=127.0.0.1:0 \
		--cloud-provider=aws --cloud-config "${config}" \
		--node-group-auto-discovery=asg:tag=k8s.io/cluster-autoscaler/enabled,k8s.io/cluster-autoscaler/fleet "$@"
}

case ${AUTOSCALER:-} in
off) ;;
"")
	# shellcheck disable=SC2086  # several flags
	start autoscaler bin/autoscaler-sim --cloud "${MICA_FLEET}" ${AUTOSCALER_FLAGS:-}
	;;
*)
	if [[ ! -x ${AUTOSCALER} ]]; then
		echo "AUTOSCALER=${AUTOSCALER} is no program: name a cluster-autoscaler binary by its absolute path" >&2
		exit 1
	fi
	# shellcheck disable=SC2086  # several flags
	real_autoscaler ${AUTOSCALER_FLAGS:-}
	export MICA_REAL_AUTOSCALER=1
	;;
esac

# In the background, so that a signal is heeded at once.
"$@" <&0 &
command=$!
children+=("${command}")
wait "${command}"
