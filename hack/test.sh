#!/usr/bin/env bash
# Runs tests in steps that must all succeed:
#
#   hack/test.sh unit e2e   what `make test` runs; with CI=true also lint and the README's first
#                           command in a bare environment
#   hack/test.sh fast       unit tests without race detector; needs neither root nor a cluster
#   hack/test.sh bench      every benchmark
#
# The end-to-end tests get E2E_FLAGS, such as -test.run with a pattern.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/steps.sh

# Of a package: its crash tests take minutes, and several times that on a busy machine.
patience=30m
# What the tests that are to give way to others are run with.
gentle=()

format=(--format pkgname --format-hide-empty-pkg --hide-summary skipped)

# tests REPORT ARGUMENT... runs go test in the working directory. What it finds is in bin/logs/REPORT.json too.
tests() {
	local report=$logs/$1.json
	shift
	# Compilers are spared the collection of garbage; tests are not.
	GOGC=off GOMEMLIMIT=2GiB "${gentle[@]}" "$gotestsum" "${format[@]}" --jsonfile "$report" -- \
		-exec "env -u GOGC -u GOMEMLIMIT" -timeout "$patience" "$@"
}

# in_module DIRECTORY REPORT ARGUMENT... runs the tests of another module.
in_module() {
	cd "$1"
	shift
	tests "$@"
}

# Rooms without a goroutine: the race detector would take ten times as long to find nothing.
pure=(
	pkg/gpu pkg/slice pkg/policy pkg/scaleout pkg/scaleout/fit pkg/scaleout/template pkg/scaleout/explain
	pkg/scaleout/headroom pkg/elastic/scaledobject pkg/schedule hack/docs hack/floors hack/spelling
)
# Rooms whose tests kill something at every point: at each without the race detector, at some with it.
# test/crash kills processes, which the detector does not see.
exhaustive=(pkg/node/prepare pkg/scaleout/pair pkg/scaleout/control)
processes=(deployments/helm test/crash)

unit() {
	HELM=$(bin/cluster tool helm)
	export HELM
	local plain=("${pure[@]}" "${exhaustive[@]}" "${processes[@]}") racing=() package
	for package in $(go list -f '{{.ImportPath}}' ./...); do
		package=${package#github.com/mica-gpu/mica/}
		[[ " ${pure[*]} ${processes[*]} " == *" $package "* ]] || racing+=("$package")
	done
	show "unit tests" tests unit "${plain[@]/#/./}"
	show "unit tests, race detector" tests race -race -short "${racing[@]/#/./}"
	show "tests of the cluster" in_module test/cluster cluster -race ./...
	show "agreement with the stock scheduler" in_module test/scheduler scheduler ./...
	show "what Kueue charges" in_module test/kueue kueue ./...
	show "kind's configuration" in_module test/kind kind ./...
	show "the files for EKS" in_module test/eks eks ./...
	show "tests of the tools" in_module hack/tools tools ./...
	# KEDA is large: what was compiled for the cluster is taken for the tests of its client.
	CGO_ENABLED=0 show "KEDA's own scalers" in_module test/keda keda ./...
}

# part NAME runs one part of the end-to-end tests on a cluster of its own, and writes their status to a file at the end.
part() {
	local status=0
	# A signal ends the cluster, which takes a moment, and this shell after it.
	trap : TERM
	MICA_E2E_PART=$1 MICA_E2E_NODE_STATUS=$logs/e2e-node.status MICA_E2E_NODE_LOGS=$PWD/bin/e2e-logs/node \
		bin/cluster run "${hardware[@]}" --logs "bin/e2e-logs/$1" -- hack/e2e.sh >"$logs/e2e-$1.log" 2>&1 </dev/null || status=$?
	echo "$status" >"$logs/e2e-$1.status"
}

# start_e2e starts both parts in a process group of their own: $beside.
start_e2e() {
	# TestEachRightIsUsed reads each audit log that it finds.
	rm -rf "$logs"/e2e-*.status bin/e2e-logs/{node,scaling}
	truncate --size 0 "$logs"/e2e-{node,scaling}.log
	set -m
	{
		part node &
		part scaling
		wait || wait
	} &
	beside=$!
	set +m
	trap end_beside EXIT
}

# report_e2e PART shows what a part's tests say, until both end.
report_e2e() {
	tail --pid="$beside" --lines=+1 --follow "$logs/e2e-$1.log"
	return "$(<"$logs/e2e-$1.status")"
}

# end_beside ends them when the others have failed or were interrupted.
end_beside() {
	kill -TERM -- "-$beside" 2>/dev/null || true
	wait "$beside" 2>/dev/null || true
}

e2e() {
	if [[ ${E2E_FLAGS:-} ]]; then
		# shellcheck disable=SC2086  # several flags
		show "end-to-end tests" bin/cluster run "${hardware[@]}" --logs bin/e2e-logs -- hack/e2e.sh $E2E_FLAGS
		return
	fi
	start_e2e
	finish_e2e
}

finish_e2e() {
	show "end-to-end tests of the node" report_e2e node
	show "end-to-end tests of scaling" report_e2e scaling
	trap - EXIT
}

# With a control plane that behaves as a Kubernetes before MIG partitions, shares and device taints.
older() {
	bin/cluster run "${hardware[@]}" --emulate 1.34 --logs bin/older-logs -- hack/older.sh
}

# The end-to-end tests wait for their clusters most of the time, and leave the processors to the unit tests, which have
# no clock to meet.
unit_beside_e2e() {
	start_e2e
	gentle=(nice -n 10)
	unit
	show "an older Kubernetes" older
	finish_e2e
}

bench() {
	show "benchmarks" go test -run '^$' -bench . -benchmem ./pkg/... ./cmd/controller/ ./test/bench/... ./test/crash/...
	show "benchmarks on the cluster" bin/cluster run "${hardware[@]}" --logs bin/e2e-logs -- hack/e2e.sh -test.run '^$' -test.bench .
}

name=test extra=()
case "$*" in
fast) name=test-fast ;;
unit) name=test-unit ;;
e2e) name=test-e2e ;;
bench) name=bench ;;
"unit e2e")
	# Style is for those who change the code; it never comes before the tests.
	[[ ${CI:-} == true ]] && extra=(bare lint)
	;;
*)
	echo "usage: hack/test.sh unit|e2e|fast|bench, or unit e2e" >&2
	exit 2
	;;
esac

logs=$PWD/bin/logs
gotestsum=$PWD/bin/gotestsum
read -ra hardware <<<"${CLUSTER_HARDWARE}"

if [[ $name == test-fast ]]; then
	begin "$name"
	step "machine" hack/check.sh --no-cluster
	step "cluster tool" make --silent bin/cluster
	step "helm, for the chart's tests" bin/cluster build helm
	step "test runner" make --silent gotestsum
	HELM=$(bin/cluster tool helm)
	export HELM
	# What did not change is taken from go test's cache.
	show "unit tests" "$gotestsum" "${format[@]}" --jsonfile "$logs/fast.json" -- -short ./...
	finished
	exit
fi

begin "$name"
step "machine" hack/check.sh --gpu "$GPU"
step "cluster tool" make --silent bin/cluster
binaries=(helm)
[[ $* != unit ]] && binaries+=(kubernetes etcd containerd runc cni workload kwok prometheus keda)
show "binaries" bin/cluster build "${binaries[@]}"
step "test runner" make --silent gotestsum
if [[ $* == unit ]]; then
	step "simulator" make --silent nvml-sim
else
	step "Mica, its images and what plays its surroundings" make --silent e2e-parts
fi
if [[ $* == "unit e2e" ]]; then
	unit_beside_e2e
else
	"$1"
fi
for part in "${extra[@]}"; do
	case $part in
	bare) show "README's first command, in a bare environment" hack/bare.sh demo ;;
	lint) show "lint" hack/lint.sh ;;
	esac
done
finished
