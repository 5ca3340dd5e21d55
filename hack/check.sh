#!/usr/bin/env bash
# Says what this machine lacks for a cluster, everything at once, before anything is built:
#
#   hack/check.sh [--gpu host]   for what starts a cluster
#   hack/check.sh --no-cluster   for what only builds and tests Go code
#
# It changes nothing and needs bash and coreutils alone. Tests set CHECK_ROOT, below which it then
# looks for /proc, /sys and /dev.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

root=${CHECK_ROOT:-}
cluster=true gpu=sim
while (($# > 0)); do
	case $1 in
	--no-cluster) cluster=false ;;
	--gpu)
		gpu=${2:?"--gpu needs a value"}
		shift
		;;
	*)
		echo "usage: hack/check.sh [--no-cluster] [--gpu sim|host]" >&2
		exit 2
		;;
	esac
	shift
done
case ${gpu} in
sim | host) ;;
*)
	echo "GPU=${gpu}: there are GPU=sim, which simulates GPUs, and GPU=host, which uses this machine's" >&2
	exit 2
	;;
esac

missing=()
# lacks WHAT REMEDY remembers one thing.
lacks() { missing+=("$1"$'\n'"      $2"); }

need_program() { # NAME USE REMEDY
	command -v "$1" >/dev/null || lacks "$1: $2" "$3"
}

# newest_go prints the newest Go version that a module of this checkout asks for.
newest_go() {
	local file word version newest=0
	for file in go.mod */go.mod */*/go.mod test/cluster/build/*/go.mod; do
		[[ -f ${file} ]] || continue
		while read -r word version; do
			[[ ${word} == go ]] && { newest=$(printf '%s\n' "${newest}" "${version}" | sort -V | tail -n 1) && break; }
		done <"${file}"
	done
	echo "${newest}"
}

check_go() {
	need_program go "builds everything" "install Go $(newest_go) or newer from https://go.dev/dl"
	command -v go >/dev/null || return
	local need have
	need=$(newest_go)
	# Not the one that the go command would fetch.
	have=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null)
	have=${have#go}
	if [[ $(printf '%s\n' "${need}" "${have%%[ -]*}" | sort -V | head -n 1) != "${need}" ]]; then
		lacks "Go ${need}: builds everything; go on PATH is ${have:-of an unknown version}" "install Go ${need} or newer from https://go.dev/dl"
		return
	fi
	check_modules
}

# If one small module can be fetched, or is here, so can the others.
check_modules() {
	local said
	if ! said=$(timeout 5 go mod download golang.org/x/sync 2>&1); then
		lacks "Go modules cannot be fetched from $(go env GOPROXY): ${said:-no answer within 5 seconds}" \
			"set GOPROXY to a proxy that this machine reaches, or HTTPS_PROXY to its way out"
	fi
}

check_compiler() {
	need_program gcc "builds what loads NVIDIA's library, and runc" "apt-get install gcc libc6-dev"
	command -v gcc >/dev/null || return
	echo '#include <stdio.h>' | gcc -E - >/dev/null 2>&1 ||
		lacks "the C library's headers: gcc does not find stdio.h" "apt-get install libc6-dev"
	# gcc prints a path only of what it finds. The CDI hook is static.
	[[ $(gcc -print-file-name=libc.a) == */* ]] ||
		lacks "the static C library: gcc does not find libc.a" "apt-get install libc6-dev; dnf install glibc-static"
}

# A first build writes this much, a later one a fifth of it.
readonly first_build_gib=9 later_gib=2

# check_space looks where a build writes. What is asked of one file system is added up.
check_space() {
	command -v go >/dev/null || return
	local cache=${MICA_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/mica}
	local need=${first_build_gib} dir
	compgen -G "${cache}/*/bin/kubelet" >/dev/null && need=${later_gib}
	for dir in "$(go env GOCACHE)" "$(go env GOMODCACHE)" "${TMPDIR:-/tmp}"; do
		while [[ ! -d ${dir} && ${dir} == /*/* ]]; do dir=${dir%/*}; done
		local free
		free=$(df --output=avail --block-size=1G "${dir}" 2>/dev/null | tail -n 1)
		if [[ -n ${free} ]] && ((free < need)); then
			lacks "disk space: ${dir} has ${free} GiB left and needs ${need}" \
				"free some; or set GOCACHE, GOMODCACHE, MICA_CACHE and TMPDIR to directories with space"
			return
		fi
	done
}

check_kernel() {
	local name value number capabilities=0
	while read -r name value; do
		[[ ${name} == CapEff: ]] && capabilities=$((16#${value}))
	done <"${root}/proc/self/status"
	# Numbers of capabilities(7), from linux/capability.h.
	while read -r number name value; do
		((capabilities >> number & 1)) || lacks "${name}: ${value}" "start this machine's container with --privileged"
	done <<-END
		21 CAP_SYS_ADMIN mounts and namespaces need it
		12 CAP_NET_ADMIN pod networks need it
		27 CAP_MKNOD device nodes need it
	END
	for name in pid mnt net; do
		[[ -e ${root}/proc/self/ns/${name} ]] || lacks "${name} namespaces in the kernel" "use a kernel with CONFIG_NAMESPACES"
	done
	check_cgroups
}

check_cgroups() {
	local groups=${root}/sys/fs/cgroup controller
	local remedy="mount the machine's cgroups at /sys/fs/cgroup, writable; in a container: --privileged"
	if [[ -e ${groups}/cgroup.controllers ]]; then
		[[ -w ${groups}/cgroup.subtree_control ]] || lacks "a writable cgroup v2 hierarchy: each pod has a cgroup" "${remedy}"
		return
	fi
	# Those that kubelet insists on.
	for controller in cpu cpuacct cpuset memory pids; do
		[[ -w ${groups}/${controller} ]] || lacks "a writable cgroup v1 controller ${controller}: each pod has a cgroup" "${remedy}"
	done
}

check_driver() {
	[[ -e ${root}/dev/nvidiactl ]] ||
		lacks "/dev/nvidiactl: GPU=host uses this machine's own GPUs" \
			"load the NVIDIA driver and run nvidia-smi once, which makes the device; or simulate GPUs, without GPU=host"
	local dir
	# Where distributions and NVIDIA's installer put the driver's libraries.
	for dir in /usr/lib/{x86_64,aarch64}-linux-gnu{,/nvidia/current} /usr/lib64 /usr/lib /lib/{x86_64,aarch64}-linux-gnu /lib64; do
		[[ -e ${root}${dir}/libnvidia-ml.so.1 ]] && return
	done
	lacks "libnvidia-ml.so.1: the plugin asks it for the machine's GPUs" \
		"install the NVIDIA driver's libraries, of the same version as its kernel module"
}

check_go
check_compiler
need_program make "runs the targets" "apt-get install make"
need_program git "tells the version that binaries carry" "apt-get install git"
check_space
if [[ ${cluster} == true ]]; then
	if (($(id -u) != 0)); then
		lacks "root: containers, mounts and network namespaces need it" "run make with sudo, or in a root shell; \`make test-fast\` needs no root"
	else
		check_kernel
	fi
	need_program mount "is how kubelet mounts volumes" "apt-get install mount"
	need_program umount "is how kubelet unmounts volumes" "apt-get install mount"
	need_program setpriv "ends what tests start together with them" "apt-get install util-linux"
	need_program unshare "keeps the mounts of tests to themselves" "apt-get install util-linux"
	# NVIDIA's CDI hook runs it for every container that gets a GPU.
	[[ -x ${root}/sbin/ldconfig ]] || lacks "/sbin/ldconfig: makes the driver's libraries known in containers" "apt-get install libc-bin; a machine without glibc cannot run the cluster"
	[[ ${gpu} == host ]] && check_driver
fi

((${#missing[@]} == 0)) && exit 0
{
	echo "This machine is not ready yet. It lacks:"
	printf '  %s\n' "${missing[@]}"
} >&2
exit 1
