#!/usr/bin/env bash
# Runs a command, such as make kind-up, beside a Docker engine of its own that has a node image of kind. Both are made
# from Debian's packages and Go modules, so the machine needs neither Docker nor a registry:
#
#   hack/kind-local.sh COMMAND [ARGUMENT...]
#
# It needs root, Debian's keyring (package debian-archive-keyring) and what make test needs. Nothing is installed: the
# engine runs in namespaces of its own, without a way out, and ends with the command. What was built stays in
# bin/kind/local for the next run.
#
#   DEBIAN_MIRROR  where Debian's packages come from (default http://deb.debian.org/debian)
#
# The image has what kind's own has, with these differences. CoreDNS is missing, and its pods wait. The node's CNI
# configuration is a file, not written by kindnetd, so a cluster has one node and no NetworkPolicy. There is neither a
# provisioner of volumes nor crictl.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "${BASH_SOURCE[0]}")/.."

state=$PWD/bin/kind/local
# A file system of Debian 12: the engine's root, and the base of all images. Its systemd takes cgroup v1, too.
root=$state/root
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
packages=(bash ca-certificates conntrack curl docker.io e2fsprogs ethtool iproute2 iptables jq kmod libseccomp2 mount
	nftables pigz procps systemd util-linux)

fail() {
	echo "kind-local: $*" >&2
	exit 1
}

tool() { bin/cluster tool "$1"; }

# limited reports whether the machine lacks CAP_SYS_RESOURCE, number 24 in linux/capability.h.
limited() {
	local bounding
	bounding=$(sed -n 's/^CapBnd:\s*//p' /proc/self/status)
	((!(16#$bounding >> 24 & 1)))
}

# debian unpacks Debian into $root.
debian() {
	local scratch=$state/apt debootstrap
	[[ -f $root/.complete ]] && return
	command -v apt-get >/dev/null || fail "apt-get is missing: on a machine without it, start Docker and use make kind-up"
	[[ -f /usr/share/keyrings/debian-archive-keyring.gpg ]] || fail "Debian's keyring is missing: apt-get install debian-archive-keyring"
	rm -rf --one-file-system "$root" "$scratch"
	mkdir -p "$scratch"/{lists,cache}
	# With lists of its own: those of the machine stay as they are.
	local apt=(-qq -o "Dir::State::Lists=$scratch/lists" -o "Dir::Cache=$scratch/cache" -o APT::Sandbox::User=root
		-o Dir::Etc::SourceParts=- -o "Dir::Etc::SourceList=$scratch/sources.list")
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main" >"$scratch/sources.list"
	(cd "$scratch" && apt-get "${apt[@]}" update && apt-get "${apt[@]}" download debootstrap && dpkg -x debootstrap_*.deb .)
	debootstrap=(env "DEBOOTSTRAP_DIR=$scratch/usr/share/debootstrap" unshare --mount "$scratch/usr/sbin/debootstrap")
	"${debootstrap[@]}" --foreign --variant=minbase --include="$(IFS=, && echo "${packages[*]}")" bookworm "$root" "$mirror"
	# Files need not reach the disk one by one.
	echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io"
	unshare --mount chroot "$root" /debootstrap/debootstrap --second-stage
	rm -rf "$scratch" "$root"/var/cache/apt/archives/*.deb "$root"/usr/share/{doc,man,locale}/*
	# What kind's own image leaves out: no service but those of the node.
	rm -f "$root"/etc/systemd/system/*.wants/* "$root"/usr/lib/systemd/system/{multi-user,local-fs,basic}.target.wants/* \
		"$root"/usr/lib/systemd/system/sockets.target.wants/*{udev,initctl}* \
		"$root"/usr/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service
	echo ReadKMsg=no >>"$root/etc/systemd/journald.conf"
	touch "$root/.complete"
}

# key names the node image by what decides its content.
key() { cat hack/kind-local.sh test/kind/node/* test/cluster/build/cluster/go.mod test/kind/go.mod | sha256sum | head -c 12; }

# pack OVERLAY IMAGE ENTRYPOINT imports Debian without the engine, with the files of a directory over it, as an image.
pack() {
	tar -C "$root" --one-file-system --exclude=".$PWD" --exclude=./.complete --exclude='./usr/bin/docker*' --exclude='./usr/bin/containerd*' \
		--exclude=./usr/sbin/dockerd --exclude=./usr/sbin/runc --exclude=./usr/local/sbin/runc --exclude=./etc/containerd --exclude=./var/lib/apt \
		-cf "$state/image.tar" .
	# Docker takes no path twice, not even that of a directory.
	(cd "$1" && find . ! -type d -o -empty) | tar -C "$1" --owner=0 --group=0 --files-from - -rf "$state/image.tar"
	docker import --change "ENTRYPOINT $3" --change "ENV container=docker" "$state/image.tar" "$2" >/dev/null
	rm "$state/image.tar"
}

# control_plane KUBEADM VERSION CONFIG makes one image of all that kubeadm starts, kube-proxy with Debian's iptables
# included, and prints the names that it goes by. CONFIG is that of containerd, which names another pause than kubeadm.
control_plane() {
	local files=$state/control-plane name names
	rm -rf "$files"
	mkdir -p "$files/usr/local/bin"
	for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy etcd pause; do
		cp "$(tool "$name")" "$files/usr/local/bin/"
	done
	pack "$files" mica.local/control-plane:dev '["/usr/local/bin/pause"]'
	names=$("$1" config images list --kubernetes-version "$2" | grep -v /coredns)
	names+=" $(sed -n 's/^ *sandbox_image = "\(.*\)"$/\1/p' "$3")"
	for name in $names; do docker tag mica.local/control-plane:dev "$name"; done
	echo "$names"
	rm -rf "$files"
}

# node_image NAME makes what images/base/Dockerfile and `kind build node-image` of kind's module make.
node_image() {
	local files=$state/node from kubeadm version name names units=etc/systemd/system
	from=$(cd test/kind && go list -m -f '{{.Dir}}' sigs.k8s.io/kind)/images/base/files
	kubeadm=$(tool kubeadm)
	version=$("$kubeadm" version --output short)
	docker image prune --all --force >/dev/null
	rm -rf "$files"
	mkdir -p "$files"/{usr/bin,usr/sbin,usr/local/sbin,opt/cni/bin,etc/cni/net.d,etc/kubernetes/manifests,kind/manifests,"$units/multi-user.target.wants"}
	# Files of a module have no mode.
	cp -r --no-preserve=mode "$from"/{etc,kind,usr} "$files/"
	chmod 0755 "$files"/{usr/local/bin,kind/bin}/*
	for name in containerd containerd-shim-runc-v2 ctr; do cp "$(tool "$name")" "$files/usr/local/bin/"; done
	for name in host-local loopback ptp; do cp "$(tool "$name")" "$files/opt/cni/bin/"; done
	for name in kubeadm kubelet kubectl; do cp "$(tool "$name")" "$files/usr/bin/"; done
	cp "$(tool runc)" "$files/usr/local/sbin/"
	"$(tool ctr)" oci spec | chroot "$root" jq '.hooks.createContainer = [{path: "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' \
		>"$files/etc/containerd/cri-base.json"
	if limited; then
		sed -i 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' "$files/etc/containerd/config.toml"
	fi
	if [[ ! -e /sys/fs/cgroup/cgroup.controllers ]]; then
		# With systemd's cgroup v1, runc at times cannot start a container on a busy machine: "unable to freeze".
		sed -i 's/SystemdCgroup = true/SystemdCgroup = false/' "$files/etc/containerd/config.toml"
	fi
	echo -n "$version" >"$files/kind/version"
	cp test/kind/node/cni.conflist "$files/etc/cni/net.d/10-kindnet.conflist"
	cp test/kind/node/cni.yaml "$files/kind/manifests/default-cni.yaml"
	cp test/kind/node/images.service "$files/$units/"
	for name in kubelet containerd undo-mount-hacks images; do ln -s "/$units/$name.service" "$files/$units/multi-user.target.wants/"; done
	ln -s /dev/null "$files/$units/systemd-binfmt.service"
	ln -s /usr/lib/systemd/systemd "$files/usr/sbin/init"
	names=$(control_plane "$kubeadm" "$version" "$files/etc/containerd/config.toml")
	# shellcheck disable=SC2086  # several names
	docker save --output "$files/kind/images.tar" $names
	pack "$files" "$1" '["/usr/local/bin/entrypoint", "/sbin/init"]'
	rm -rf "$files"
}

# daemon is Docker's process in a mount namespace of its own, whose root is Debian and that has this checkout in its
# place. A chroot is no substitute: what docker exec starts would see the machine's root.
daemon() {
	local path
	mount --bind "$root" "$root"
	mount -t proc proc "$root/proc"
	for path in /sys /dev; do mount --rbind "$path" "$root$path"; done
	mount -t tmpfs tmpfs "$root/run"
	mkdir -p "$root$PWD"
	mount --bind "$PWD" "$root$PWD"
	cd "$root"
	pivot_root . .
	umount --lazy .
	exec dockerd --host "unix://$state/docker.sock" --data-root "$state/docker" --cgroup-parent "$1"
}

# engine starts Docker, and waits until it answers.
engine() {
	ip link set lo up
	rm -f "$root/usr/local/sbin/runc"
	! limited || install -m 0755 test/kind/node/runc.sh "$root/usr/local/sbin/runc"
	mkdir -p "$state/bin"
	ln -sf "$root/usr/bin/docker" "$state/bin/docker"
	export PATH=$state/bin:$PATH DOCKER_HOST=unix://$state/docker.sock
	unshare --mount --propagation private hack/kind-local.sh --daemon "$1" >"$state/dockerd.log" 2>&1 </dev/null &
	for _ in {1..150}; do
		docker version >/dev/null 2>&1 && return
		sleep 0.2
	done
	fail "the Docker engine does not start: $state/dockerd.log ends with: $(tail -n 1 "$state/dockerd.log")"
}

# inside CGROUP COMMAND... is the first process of the namespaces, and all others end with it.
inside() {
	local image left version
	engine "$1"
	shift
	image=mica.local/kind-node:$(key)
	# Of a run that was killed.
	mapfile -t left < <(docker ps --all --quiet)
	((${#left[@]} == 0)) || docker rm --force --volumes "${left[@]}" >/dev/null
	if ! docker image inspect "$image" >/dev/null 2>&1; then node_image "$image"; fi
	version=$("$(tool kubeadm)" version --output short)
	version=${version#v}
	export KIND_NODE_IMAGE=$image KUBERNETES=${version%.*}
	"$@"
}

case ${1:-} in
--inside | --daemon)
	"${1#--}" "${@:2}"
	exit
	;;
esac
(($# > 0)) || {
	echo "usage: hack/kind-local.sh COMMAND [ARGUMENT...]" >&2
	exit 2
}
(($(id -u) == 0)) || fail "it needs root, for namespaces and mounts: run it with sudo"
mkdir -p "$state"
exec 9>"$state/lock"
flock --nonblock 9 || fail "another one runs in this checkout: wait until it ends"
debian
hack/kind.sh build
bin/cluster build kubeadm kubernetes etcd containerd runc cni workload

cgroup=mica-kind-$$ sandbox=
# finish ends all processes of the sandbox, and removes what the kernel keeps of them.
finish() {
	kill -KILL "$sandbox" 2>/dev/null || true
	wait "$sandbox" || true
	for _ in {1..50}; do
		find /sys/fs/cgroup -depth -type d \( -name "$cgroup" -o -path "*/$cgroup/*" \) -exec rmdir {} + 2>/dev/null && break
		sleep 0.1
	done
}
trap finish EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
# In the background, so that a signal is heeded at once.
unshare --net --mount --pid --fork --kill-child --mount-proc --propagation private hack/kind-local.sh --inside "/$cgroup" "$@" <&0 &
sandbox=$!
wait "$sandbox"
