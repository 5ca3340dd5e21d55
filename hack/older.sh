#!/usr/bin/env bash
# Tests Mica on the local cluster, whose control plane is started with --emulate as an older
# Kubernetes: `cluster run --emulate 1.34 -- hack/older.sh`.
set -euo pipefail
cd "$(dirname "$0")/.."

cluster=$(bin/cluster info -o env)
eval "$cluster"
export KUBECONFIG MICA_DRIVER_ROOT MICA_SIM_SOCKET MICA_NODE_IP MICA_E2E_OLDER=1
hack/install.sh >/dev/null
bin/gotestsum --format testname --jsonfile bin/logs/older.json \
	--raw-command -- go tool test2json -t -p test/e2e env -C test/e2e "$PWD/bin/e2e.test" \
	-test.timeout 5m -test.run '^TestOnAnOlderKubernetes$' -test.v=test2json
# A pattern that no test has, and a test that skips itself, end well too.
if ! grep -q '"Action":"pass".*"Test":"TestOnAnOlderKubernetes"' bin/logs/older.json; then
	echo "TestOnAnOlderKubernetes did not run: see bin/logs/older.json" >&2
	exit 1
fi
