#!/usr/bin/env bash
# Tests the cluster of KUBECONFIG against what Kubernetes AI Conformance asks of accelerators. What a platform
# attaches is in bin/conformance: junit.xml and e2e.log. Arguments, or CONFORMANCE_FLAGS, are flags of the tests;
# `bin/conformance.test -help` lists them. The status is 3 if nothing failed and not all could be tested.
#
#   hack/conformance.sh -pool eks.amazonaws.com/nodegroup=gpu
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck disable=SC2086  # several flags
(($#)) || set -- ${CONFORMANCE_FLAGS:-}
# What is missing altogether is said in a sentence, without a report.
bin/conformance.test "$@" -test.list '^$' >/dev/null
rm -rf bin/conformance
mkdir -p bin/conformance
bin/gotestsum --format standard-verbose --hide-summary all --junitfile bin/conformance/junit.xml \
	--raw-command -- go tool test2json -t -p test/conformance \
	bin/conformance.test -test.timeout 0 "$@" -test.v=test2json 2>&1 | tee bin/conformance/e2e.log
# What was not tested is not passed, and a run of no test is none.
case $(grep ' requirements passed, ' bin/conformance/e2e.log) in
"0 of "*", 0 failed, 0 not tested,"*)
	echo "no conformance test has this name: look at -test.run and -test.skip in CONFORMANCE_FLAGS" >&2
	exit 1
	;;
*", 0 failed, 0 not tested,"*) ;;
*) exit 3 ;;
esac
