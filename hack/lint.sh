#!/usr/bin/env bash
# Checks what a compiler does not: Go (golangci-lint, logcheck), generated files, shell scripts
# (shellcheck), GitHub's workflows (actionlint) and spelling (misspell, hunspell). All checks run even when the first one fails.
#
#   GOLANGCI_LINT  the golangci-lint to use; by default the one that bin/cluster builds
#   CI             when "true", a missing shellcheck or hunspell is installed with apt-get
#
# shellcheck disable=SC2317,SC2329  # the checks are called by name
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

failed=0

# check NAME COMMAND... runs one check and remembers whether it failed.
check() {
	local name=$1
	shift
	if "$@"; then
		echo "lint: ${name}: ok"
	else
		echo "lint: ${name}: failed" >&2
		failed=1
	fi
}

golangci() {
	local binary=${GOLANGCI_LINT:-}
	if [[ -z ${binary} ]]; then
		binary=$(bin/cluster tool golangci-lint) || return 1
	fi
	"${binary}" run ./... && (cd test/cluster && "${binary}" run --config ../../.golangci.yaml ./...) &&
		(cd test/scheduler && "${binary}" run --config ../../.golangci.yaml ./...) &&
		(cd test/kueue && "${binary}" run --config ../../.golangci.yaml ./...) &&
		(cd test/keda && CGO_ENABLED=0 "${binary}" run --config ../../.golangci.yaml ./...) &&
		(cd test/redis && "${binary}" run --config ../../.golangci.yaml ./...) &&
		(cd test/kind && "${binary}" run --config ../../.golangci.yaml ./...) &&
		(cd test/eks && "${binary}" run --config ../../.golangci.yaml ./...) &&
		(cd hack/tools && "${binary}" run --config ../../.golangci.yaml ./...)
}

# Logs are contextual in the product; tests and tools may print.
logcheck() {
	go tool -modfile=hack/tools/go.mod logcheck -check-contextual ./pkg/... ./cmd/...
}

# What is generated from the API's types and messages must be that of them as they are now.
generated() {
	local scratch
	scratch=$(mktemp -d) || return 1
	cp -r api "${scratch}/api" && cp -r deployments/helm/mica/crds "${scratch}/crds" || return 1
	go generate ./api/... || return 1
	diff -r "${scratch}/api" api && diff -r "${scratch}/crds" deployments/helm/mica/crds
	local same=$?
	rm -rf "${scratch}"
	if [[ ${same} != 0 ]]; then
		echo "generated files were stale and are written anew: commit them" >&2
	fi
	return "${same}"
}

# have COMMAND PACKAGE... says whether there is a command, and installs the packages that have it with CI=true.
have() {
	local command=$1
	shift
	command -v "${command}" >/dev/null && return
	if [[ ${CI:-} == true && $(id -u) == 0 ]]; then
		apt-get update -qq >/dev/null && apt-get install -y -qq "$@" >/dev/null && return
	fi
	echo "${command} is missing; install it with: apt-get install $*" >&2
	return 1
}

scripts() {
	have shellcheck shellcheck || return 1
	local files
	mapfile -t files < <(find . \( -path ./.git -o -path ./bin \) -prune -o -type f -name '*.sh' -print)
	shellcheck --external-sources .ci/run "${files[@]}"
}

# actionlint also has shellcheck look at the steps' scripts.
workflows() { go tool -modfile=hack/tools/go.mod actionlint; }

# Words that are misspelled often; golangci-lint sees those of Go. hack/docs checks links and commands.
spelling() {
	git ls-files -z '*.md' '*.sh' '*.yaml' | xargs -0 go tool -modfile=hack/tools/go.mod misspell -error
}

# Words of the pages that no dictionary has, and that are not in hack/spelling/words.txt.
dictionary() {
	have hunspell hunspell hunspell-en-us || return 1
	go run ./hack/spelling
}

check golangci-lint golangci
check logcheck logcheck
check generated generated
check shellcheck scripts
check spelling spelling
check dictionary dictionary
check actionlint workflows
exit "${failed}"
