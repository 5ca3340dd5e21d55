// Package build owns the binaries that the cluster runs: which module and
// flags each one comes from, and the cache they are kept in. It never starts
// one of them.
package build

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"golang.org/x/mod/modfile"
)

// Tags are the build tags of every binary. They are the Makefile's too, so that
// the go command compiles a package once for all: netgo and osusergo make a
// package's files the same with and without cgo. With grpcnotrace the linker can
// drop unused methods: grpc's tracing page brings html/template.
var Tags = []string{"netgo", "osusergo", "grpcnotrace"}

// Group is a set of binaries of one upstream project.
type Group struct {
	// Name is the first part of the group's directory in the cache.
	Name string
	// In is the directory below test/cluster/build whose go.mod requires the
	// module. What a cluster runs shares one, so that it is of one set of versions and
	// nothing is compiled twice; what cannot be built with those versions has its
	// own.
	In string
	// Module is the requirement whose version names the group. Empty for
	// binaries that are this module's own.
	Module string
	// Packages maps a binary's name to the package it is built from.
	Packages map[string]string
	// CGO reports whether the group needs a C compiler.
	CGO bool
	// Tags returns the build tags for this machine.
	Tags func() []string
	// Stamp returns the -X assignments for a version of Module.
	Stamp func(version string) []string
	// Replace maps files of Module to files of this module that stand in for
	// them. They are in effect only where their build constraints are.
	Replace map[string]string
	// Sources are directories, relative to the module, whose content is part
	// of the cache key. Only for binaries that are this module's own: the
	// others are pinned by go.sum.
	Sources []string
}

// Groups are all groups, in the order in which a cold build is best done: what
// a developer waits for first comes first.
func Groups() []Group {
	const kubernetes = "k8s.io/kubernetes"
	const containerd = "github.com/containerd/containerd/v2"
	const plugins = "github.com/containernetworking/plugins"
	const kwok = "sigs.k8s.io/kwok"
	const keda = "github.com/kedacore/keda/v2"
	const prometheus = "github.com/prometheus/prometheus"
	return []Group{
		{
			Name:   "kubernetes",
			In:     "cluster",
			Module: kubernetes,
			Packages: map[string]string{
				"kube-apiserver":          kubernetes + "/cmd/kube-apiserver",
				"kube-controller-manager": kubernetes + "/cmd/kube-controller-manager",
				"kube-scheduler":          kubernetes + "/cmd/kube-scheduler",
				"kubectl":                 kubernetes + "/cmd/kubectl",
				"kubelet":                 kubernetes + "/cmd/kubelet",
			},
			Stamp: kubernetesStamp,
		},
		// For the nodes of kind that hack/kind-local.sh makes.
		{
			Name:   "kubeadm",
			In:     "cluster",
			Module: kubernetes,
			Packages: map[string]string{
				"kube-proxy": kubernetes + "/cmd/kube-proxy",
				"kubeadm":    kubernetes + "/cmd/kubeadm",
			},
			Stamp: kubernetesStamp,
		},
		{
			Name:     "etcd",
			In:       "cluster",
			Module:   "go.etcd.io/etcd/server/v3",
			Packages: map[string]string{"etcd": "go.etcd.io/etcd/server/v3"},
		},
		{
			Name:   "containerd",
			In:     "cluster",
			Module: containerd,
			Packages: map[string]string{
				"containerd":              containerd + "/cmd/containerd",
				"containerd-shim-runc-v2": containerd + "/cmd/containerd-shim-runc-v2",
				"ctr":                     containerd + "/cmd/ctr",
			},
			Tags: func() []string { return []string{"no_btrfs", "no_devmapper", "no_zfs"} },
			Stamp: func(version string) []string {
				return []string{containerd + "/version.Version=" + version}
			},
		},
		{
			Name:     "runc",
			In:       "cluster",
			Module:   "github.com/opencontainers/runc",
			Packages: map[string]string{"runc": "github.com/opencontainers/runc"},
			CGO:      true,
			Tags:     seccompTag,
			Replace:  map[string]string{"libcontainer/seccomp/seccomp_unsupported.go": "build/cluster/seccomp.go.txt"},
		},
		{
			Name:   "cni",
			In:     "cluster",
			Module: plugins,
			Packages: map[string]string{
				"host-local": plugins + "/plugins/ipam/host-local",
				"loopback":   plugins + "/plugins/main/loopback",
				"ptp":        plugins + "/plugins/main/ptp",
			},
		},
		{
			Name: "workload",
			Packages: map[string]string{
				"pause":    "github.com/mica-gpu/mica/test/cluster/pause",
				"workload": "github.com/mica-gpu/mica/test/cluster/workload",
			},
			Sources: []string{"pause", "workload"},
		},
		{
			Name:     "helm",
			In:       "cluster",
			Module:   "helm.sh/helm/v4",
			Packages: map[string]string{"helm": "helm.sh/helm/v4/cmd/helm"},
			Stamp: func(version string) []string {
				return []string{"helm.sh/helm/v4/internal/version.version=" + version}
			},
		},
		{
			Name:     "kwok",
			In:       "cluster",
			Module:   kwok,
			Packages: map[string]string{"kwok": kwok + "/cmd/kwok"},
			Stamp: func(version string) []string {
				return []string{kwok + "/pkg/consts.Version=" + version}
			},
		},
		{
			Name:     "golangci-lint",
			In:       "golangci-lint",
			Module:   "github.com/golangci/golangci-lint/v2",
			Packages: map[string]string{"golangci-lint": "github.com/golangci/golangci-lint/v2/cmd/golangci-lint"},
			Stamp: func(version string) []string {
				return []string{"main.version=" + strings.TrimPrefix(version, "v")}
			},
		},
		// What turns the pages of docs into a site; no cluster runs it.
		{
			Name:     "hugo",
			In:       "hugo",
			Module:   "github.com/gohugoio/hugo",
			Packages: map[string]string{"hugo": "github.com/gohugoio/hugo"},
		},
		{
			Name:   "prometheus",
			In:     "prometheus",
			Module: prometheus,
			Packages: map[string]string{
				"prometheus": prometheus + "/cmd/prometheus",
				"promtool":   prometheus + "/cmd/promtool",
			},
			// Targets come from a file: without the clouds' discovery, and
			// their clients, the build takes half the time.
			Tags: func() []string { return []string{"remove_all_sd"} },
		},
		{
			Name:   "keda",
			In:     "keda",
			Module: keda,
			Packages: map[string]string{
				"keda":         keda + "/cmd/operator",
				"keda-adapter": keda + "/cmd/adapter",
			},
			Stamp: func(version string) []string {
				return []string{keda + "/version.Version=" + strings.TrimPrefix(version, "v")}
			},
		},
	}
}

// kubernetesStamp sets what the servers report as their version: without it
// they say v0.0.0-master+$Format and kubectl cannot parse that.
func kubernetesStamp(version string) []string {
	const pkg = "k8s.io/component-base/version."
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	stamp := []string{pkg + "gitVersion=" + version, pkg + "gitTreeState=archive"}
	if len(parts) == 3 {
		stamp = append(stamp, pkg+"gitMajor="+parts[0], pkg+"gitMinor="+parts[1])
	}
	return stamp
}

// seccompTag builds runc with seccomp where libseccomp's headers are there.
func seccompTag() []string {
	if exec.Command("pkg-config", "--exists", "libseccomp").Run() == nil {
		return []string{"seccomp"}
	}
	return nil
}

// Dir is the group's module directory below source, the directory test/cluster
// of a checkout.
func (g Group) Dir(source string) string {
	if g.Module == "" {
		return source
	}
	return filepath.Join(source, "build", g.In)
}

// Names are the group's binaries, sorted.
func (g Group) Names() []string {
	names := make([]string, 0, len(g.Packages))
	for name := range g.Packages {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// Version is the version of the group's module as its go.mod requires it, and
// "dev" for a group that is this module's own.
func (g Group) Version(source string) (string, error) {
	if g.Module == "" {
		return "dev", nil
	}
	path := filepath.Join(g.Dir(source), "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading the requirements of %s: %w", g.Name, err)
	}
	mod, err := modfile.ParseLax(path, data, nil)
	if err != nil {
		return "", fmt.Errorf("reading the requirements of %s: %w", g.Name, err)
	}
	for _, require := range mod.Require {
		if require.Mod.Path == g.Module {
			return require.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("%s does not require %s: add it there", path, g.Module)
}

// Find returns the group that holds a binary.
func Find(groups []Group, binary string) (Group, error) {
	var known []string
	for _, g := range groups {
		if _, ok := g.Packages[binary]; ok {
			return g, nil
		}
		known = append(known, g.Names()...)
	}
	sort.Strings(known)
	return Group{}, fmt.Errorf("no binary is called %q: there are %s", binary, strings.Join(known, ", "))
}

// Names are the binaries that names stand for; each name is a group's or a
// binary's.
func Names(names []string) ([]string, error) {
	var binaries []string
	for _, name := range names {
		if i := slices.IndexFunc(Groups(), func(g Group) bool { return g.Name == name }); i >= 0 {
			binaries = append(binaries, Groups()[i].Names()...)
			continue
		}
		if _, err := Find(Groups(), name); err != nil {
			return nil, err
		}
		binaries = append(binaries, name)
	}
	return binaries, nil
}
