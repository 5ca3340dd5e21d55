#!/usr/bin/env bash
# Runs every fuzz target of the repository for a while, one after the other:
#
#   hack/fuzz.sh [TIME]   such as 30s; a minute by default
#
# What a target finds is written to the testdata of its package, where go test runs it from then on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

targets=0
while IFS=: read -r file function; do
	function=${function#func }
	echo "fuzz: ${function%%(*} of ${file%/*}"
	go test "./${file%/*}" -run '^$' -fuzz "^${function%%(*}\$" -fuzztime "${1:-1m}" -fuzzminimizetime 5s
	targets=$((targets + 1))
done < <(git grep --no-color -o -e '^func Fuzz[A-Za-z0-9]*(' -- '*_test.go')
if ((targets == 0)); then
	echo "fuzz: no target was found" >&2
	exit 1
fi
echo "fuzz: ${targets} targets found nothing"
