#!/usr/bin/env bash
# Applies examples to the local cluster that runs now. It has one image, which takes the place of
# theirs and shows what a container got:
#
#   hack/apply.sh examples/mig-partition.yaml...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cluster=$(bin/cluster info -o env)
eval "$cluster"
export KUBECONFIG
for example in "$@"; do
	while IFS= read -r line; do
		case $line in
		*image:*) line="${line%%image:*}image: mica.local/workload:dev" ;;
		*command:*) line="${line%%command:*}args: [\"show\"]" ;;
		esac
		echo "$line"
	done <"$example"
	echo "---"
done | "$(bin/cluster tool kubectl)" apply -f -
