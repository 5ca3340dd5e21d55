#!/usr/bin/env bash
# Checks what a compiler does not: Go (golangci-lint, logcheck), generated files, shell scripts
# (shellcheck), GitHub's workflows (actionlint), spelling (misspell, hunspell) and subjects of commits. All checks run even when one fails.
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

# have COMMAND PACKAGE... reports whether there is a command, and installs the packages that have it with CI=true.
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

# Commits since the rule began: an area, a verb and its object, in at most 72 characters. Older subjects stay as they are.
first_checked=35083f2b6417788433218736934cbe34a5f6310b
subjects() {
	local range=${first_checked}..HEAD bad
	git cat-file -e "${first_checked}" 2>/dev/null || range='-n 1' # a shallow clone
	# shellcheck disable=SC2086  # a range, or two words
	bad=$(git log --no-merges --format=%s ${range} | awk '
		length($0) > 72 { print "longer than 72 characters: " $0; next }
		!/^([a-z0-9][A-Za-z0-9_.,\/ -]*: )?[A-Za-z][a-z-]+ [^ ]/ { print "not \"area: verb object\": " $0; next }
		/(^|: )([A-Za-z]+ing |merge .$|wip|fixup|squash)/ && !/(^|: )[Bb]ring / { print "no verb and object: " $0 }')
	[[ -z ${bad} ]] && return
	echo "${bad}" >&2
	return 1
}

check golangci-lint golangci
check subjects subjects
check logcheck logcheck
check generated generated
check shellcheck scripts
check spelling spelling
check dictionary dictionary
check actionlint workflows
exit "${failed}"
