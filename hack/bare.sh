#!/usr/bin/env bash
# Runs make targets as a machine does that has nothing but what the README names: an empty home,
# and of programs only Go, gcc, make, git, bash, coreutils, and mount, umount, setpriv and
# unshare of util-linux. Containers find the machine's /sbin/ldconfig, as every one with glibc has it.
#
#   hack/bare.sh TARGET...          with this checkout, and the caches that there are
#   hack/bare.sh --cold TARGET...   with a fresh clone of the last commit and empty caches
#
# It needs root, for a mount namespace in which all other programs are hidden. A cluster that the
# targets leave is taken down at the end, and nothing is left but caches.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

programs=(gcc as ld ar make git bash sh mount umount setpriv unshare
	base64 basename cat chgrp chmod chown cksum comm cp cut date dd df dirname du echo env expand expr false fold
	head hostname id install join ln ls md5sum mkdir mkfifo mknod mktemp mv nice nl nohup nproc od paste printenv
	printf pwd readlink realpath rm rmdir seq sha256sum shuf sleep sort split stat sync tac tail tee test timeout
	touch tr true truncate tsort tty uname uniq wc whoami yes)

if [[ ${1:-} != --inside ]]; then
	scratch=$(mktemp -d)
	status=0
	unshare --mount --propagation private "$0" --inside "$scratch" "$@" || status=$?
	# Go makes its module cache read-only.
	chmod -R u+w "$scratch"
	rm -rf --one-file-system "$scratch"
	exit "$status"
fi
scratch=$2
shift 2
cold=false
if [[ ${1:-} == --cold ]]; then
	cold=true
	shift
fi
(($# > 0)) || {
	echo "usage: hack/bare.sh [--cold] TARGET..." >&2
	exit 2
}

mkdir "$scratch"/{bin,sbin,home,empty}
clean=(env -i "HOME=$scratch/home" "PATH=$(go env GOROOT)/bin:/usr/bin" MICA_CLUSTER_DIR=/var/lib/mica-bare)
# How to reach the proxy is the machine's, not the user's.
for name in GOPROXY GOSUMDB GONOSUMDB; do clean+=("$name=$(go env $name)"); done
for name in HTTPS_PROXY HTTP_PROXY NO_PROXY https_proxy http_proxy no_proxy SSL_CERT_FILE NODE GPU; do
	[[ -z ${!name:-} ]] || clean+=("$name=${!name}")
done
checkout=$PWD
if [[ $cold == true ]]; then
	checkout=$scratch/mica
	git clone --quiet . "$checkout"
else
	clean+=("GOCACHE=$(go env GOCACHE)" "GOMODCACHE=$(go env GOMODCACHE)" "MICA_CACHE=${MICA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mica}")
fi

for program in "${programs[@]}"; do
	path=$(PATH=/usr/bin:/bin:/usr/sbin:/sbin command -v "$program" || true)
	# Builtins of bash have no path.
	if [[ $path == /* ]]; then cp --dereference "$path" "$scratch/bin/$program"; fi
done
cp --dereference /sbin/ldconfig "$scratch/sbin/ldconfig"
for dir in /usr/local/bin /usr/local/sbin /usr/sbin /bin /sbin /usr/bin; do
	[[ -d $dir && ! -L $dir ]] || continue
	case $dir in
	/usr/bin | /bin) source=$scratch/bin ;;
	/usr/sbin | /sbin) source=$scratch/sbin ;;
	*) source=$scratch/empty ;;
	esac
	mount --bind "$source" "$dir"
done
hash -r

finish() {
	local status=$?
	if [[ -x $checkout/bin/cluster ]]; then
		"${clean[@]}" "$checkout/bin/cluster" down >/dev/null || status=1
	fi
	exit "$status"
}
trap finish EXIT
cd "$checkout"
for target in "$@"; do
	"${clean[@]}" make --no-print-directory "$target"
done
