#!/usr/bin/env bash
# Makes docs/images/terminal-*.svg anew, of what `kubectl gpu` prints on a local cluster. `make screenshots` runs it
# on a cluster of its own: `cluster run -- hack/screenshots.sh`.
set -euo pipefail
cd "$(dirname "$0")/.."

cluster=$(bin/cluster info -o env)
eval "$cluster"
export KUBECONFIG
kubectl=$(bin/cluster tool kubectl)
PATH=$PWD/bin:${kubectl%/*}:$PATH
(cd hack/tools && go build -o ../../bin/screenshot ./screenshot)
hack/install.sh

kubectl apply --filename hack/screenshots/group.yaml --filename hack/screenshots/scene.yaml
kubectl --namespace research wait --for condition=Ready --timeout 2m pod --all
kubectl --namespace serving wait --for condition=Ready --timeout 2m pod/embedder
kubectl --namespace serving wait --for 'jsonpath={.status.conditions[?(@.type=="mica.gpu/ScaleUp")].status}=False' --timeout 2m pod/llm

# sim COMMAND... makes things happen to the GPUs.
sim() { bin/nvml-sim --socket "$MICA_SIM_SOCKET" "$@"; }
# GPUs 0 and 1 are whole, the next one is cut, and the next one is shared.
sim use 0 --utilization 91 --memory 61Gi
sim use 1 --utilization 89 --memory 60Gi
sim use 3 --utilization 17 --memory 9Gi
while read -r gpu instance _; do
	sim use "${gpu}" "${instance}" --utilization 64 --memory 6Gi
done < <(sim mig list | grep '^2 ')
sim condition 7 --recovery-action node-reboot
sim xid 7 79

# until_printed TEXT COMMAND... waits, for a minute, until a command prints a text.
until_printed() {
	local text=$1 printed='' deadline=$((SECONDS + 60))
	shift
	until [[ ${printed} == *"${text}"* ]]; do
		((SECONDS < deadline)) || { echo "after a minute \`$*\` does not print ${text}, but: ${printed}" >&2 && return 1; }
		sleep 1
		printed=$("$@" 2>&1) || true
	done
}
until_printed xid kubectl gpu list
until_printed 90% kubectl gpu top

# picture NAME COMMAND... draws what a command prints on a terminal of 110 columns. An exit code is part of what some tell.
picture() {
	local name=$1 typed=${*:2}
	TERM=xterm script --quiet --command "stty cols 110; ${typed} || true" /dev/null </dev/null |
		bin/screenshot "${typed}" >"docs/images/terminal-${name}.svg"
}
picture list kubectl gpu list
picture top kubectl gpu top
picture doctor kubectl gpu doctor
picture explain kubectl gpu explain pod/llm --namespace serving
