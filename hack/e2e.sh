#!/usr/bin/env bash
# Runs the compiled end-to-end tests, or with -test.bench its benchmarks,
# against the cluster that `cluster run` has brought up around this script.
set -euo pipefail
cd "$(dirname "$0")/.."

hack/install.sh
cluster=$(bin/cluster info -o env)
eval "$cluster"
export KUBECONFIG MICA_DRIVER_ROOT MICA_SIM_SOCKET MICA_PLUGIN_BINARY=$PWD/bin/kubelet-plugin
cd test/e2e
exec ../../bin/e2e.test -test.v -test.timeout 30m "$@"
