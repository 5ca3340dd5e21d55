#!/usr/bin/env bash
# Makes what a release consists of beside its images, in bin/release: kubectl-gpu for each platform, with its
# manifest for krew, the chart, a list of what the binaries were built of (CycloneDX), checksums, the notes. The same
# commit gives the same files, wherever it is built with the same Go and gcc.
#
#   hack/release.sh VERSION           such as v0.1.0; the tree has to be clean
#   hack/release.sh --twice VERSION   and once more from a clone elsewhere, which has to give the same
#
#   COSIGN_KEY  if set, signs the checksums with cosign; it takes what `cosign sign-blob --key` does
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
	echo "usage: hack/release.sh [--twice] VERSION" >&2
	exit 2
}

fail() {
	echo "release: $*" >&2
	exit 1
}

twice=false
if [[ ${1:-} == --twice ]]; then
	twice=true
	shift
fi
(($# == 1)) || usage
version=$1

# An archive depends on the commit alone: its names, its time, no user.
epoch=$(git log -1 --format=%ct)
archive() { tar --sort=name --mtime="@${epoch}" --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX -C "$2" -c "${@:3}" | gzip -9n >"$1"; }

# notes prints the version's part of CHANGELOG.md, which then is of a version that is released.
notes() {
	local line inside=false
	while IFS= read -r line; do
		if [[ ${line} == "## "* ]]; then
			[[ ${inside} == true ]] && break
			[[ ${line} == "## ${version#v}" || ${line} == "## ${version#v} "* ]] && inside=true
		fi
		[[ ${inside} == true ]] && printf '%s\n' "${line% (unreleased)}"
	done <CHANGELOG.md
	[[ ${inside} == true ]]
}

# check refuses what would be released by mistake.
check() {
	[[ ${version} =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$ ]] || fail "'${version}' is no version: write it as v1.2.3 or v1.2.3-rc.1"
	[[ -z $(git status --porcelain) ]] || fail "the tree has changes that no commit has: commit or remove them, see git status"
	local chart
	chart=$(sed -n 's/^version: //p' deployments/helm/mica/Chart.yaml)
	[[ ${version#v} == "${chart}" ]] || fail "the chart is of version ${chart}: set version and appVersion in deployments/helm/mica/Chart.yaml to ${version#v}"
	[[ $(sed -n 's/^appVersion: "\?\([^"]*\)"\?$/\1/p' deployments/helm/mica/Chart.yaml) == "${chart}" ]] || fail "version and appVersion of the chart differ: set both to ${version#v}"
	notes >/dev/null || fail "CHANGELOG.md has no part '## ${version#v}': write what is new and what an upgrade takes"
	[[ -z ${COSIGN_KEY:-} ]] || command -v cosign >/dev/null || fail "COSIGN_KEY is set and there is no cosign: install it, or unset the key"
}

platforms=(linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64)

# kubectl_gpu OS ARCHITECTURE builds and packs the command of users.
kubectl_gpu() {
	local suffix='' dir="${work}/$1-$2"
	[[ $1 == windows ]] && suffix=.exe
	mkdir -p "${dir}"
	CGO_ENABLED=0 GOOS=$1 GOARCH=$2 go build -ldflags "-s -w -X main.linked=${version}" -o "${dir}/kubectl-gpu${suffix}" ./cmd/kubectl-gpu
	cp LICENSE "${dir}/"
	archive "${out}/kubectl-gpu_${version}_$1_$2.tar.gz" "${dir}" "kubectl-gpu${suffix}" LICENSE
}

# krew describes the archives to kubectl's package manager (https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/).
krew() {
	local platform archive suffix
	cat <<-EOF
		apiVersion: krew.googlecontainertools.github.com/v1alpha2
		kind: Plugin
		metadata:
		  name: gpu
		spec:
		  version: ${version}
		  homepage: https://github.com/mica-gpu/mica
		  shortDescription: Show GPUs and who has them, and why pods wait for them
		  description: |
		    Lists the GPUs of a cluster with dynamic resource allocation: in what shape each is in use, who has
		    it, how busy it is and what is wrong with it. Explains why a pod waits for a GPU, and looks for
		    what is known to keep GPUs from pods. It reads with the rights of who runs it.
		  platforms:
	EOF
	for platform in "${platforms[@]}"; do
		archive=kubectl-gpu_${version}_${platform/\//_}.tar.gz suffix=
		[[ ${platform} == windows/* ]] && suffix=.exe
		cat <<-EOF
			    - selector:
			        matchLabels: {os: ${platform%/*}, arch: ${platform#*/}}
			      uri: https://github.com/mica-gpu/mica/releases/download/${version}/${archive}
			      sha256: $(sha256sum "${out}/${archive}" | cut -d ' ' -f 1)
			      bin: kubectl-gpu${suffix}
		EOF
	done
}

# Helm writes times into what it packs, so that its archive is packed again.
chart() {
	local name=mica-${version#v}.tgz
	"$(bin/cluster tool helm)" package deployments/helm/mica --destination "${work}" >/dev/null
	mkdir -p "${work}/chart"
	tar -xzf "${work}/${name}" -C "${work}/chart"
	archive "${out}/${name}" "${work}/chart" mica
}

# contents lists what the binaries of the images and kubectl-gpu were built of.
contents() {
	make --silent build VERSION="${version}"
	(cd hack/tools && go build -o "${work}/sbom" ./sbom)
	"${work}/sbom" mica "${version}" bin/kubelet-plugin bin/controller bin/nvidia-cdi-hook bin/kubectl-gpu >"${out}/mica-${version}.cdx.json"
}

build() {
	rm -rf "${out}"
	mkdir -p "${out}"
	work=$(mktemp -d)
	make --silent bin/cluster
	bin/cluster build helm >/dev/null
	local platform
	for platform in "${platforms[@]}"; do
		kubectl_gpu "${platform%/*}" "${platform#*/}"
	done
	krew >"${out}/gpu.yaml"
	chart
	contents
	notes >"${out}/NOTES.md"
	(cd bin && sha256sum kubelet-plugin controller nvidia-cdi-hook) >"${out}/binaries.sha256"
	(cd "${out}" && sha256sum -- * >"${work}/checksums" && mv "${work}/checksums" checksums.txt)
	rm -rf "${work}"
}

out=$PWD/bin/release
check
eval "$(make --silent environment)"
build
if [[ ${twice} == true ]]; then
	elsewhere=$(mktemp -d)
	trap 'rm -rf "${elsewhere}"' EXIT
	git clone --quiet . "${elsewhere}/another"
	"${elsewhere}/another/hack/release.sh" "${version}" >/dev/null
	diff "${out}/checksums.txt" "${elsewhere}/another/bin/release/checksums.txt" || fail "the same commit has given other files"
	echo "built twice, with the same checksums"
fi
if [[ -n ${COSIGN_KEY:-} ]]; then
	cosign sign-blob --yes --key "${COSIGN_KEY}" --output-signature "${out}/checksums.txt.sig" "${out}/checksums.txt"
fi
cat "${out}/checksums.txt"
