// Package layout owns the names of everything below a cluster's directory and
// the addresses inside it. It never touches the disk.
package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
)

// DefaultDir is where a cluster lives by default. It is short
// because unix socket paths are.
const DefaultDir = "/var/lib/mica"

// RunPrefix begins the directories of private clusters; a number follows.
const RunPrefix = DefaultDir + "-run"

// maxDir keeps the longest socket below a cluster's directory, a plugin's
// registration socket with a pod's UID in its name, within the 107 bytes that
// Linux allows (unix(7)).
const maxDir = 107 - len("/kubelet/plugins_registry/gpu.nvidia.com-00000000-0000-0000-0000-000000000000-reg.sock")

// Addresses inside the cluster's own network namespace, the same in every
// cluster because no two share one.
const (
	NodeName    = "mica-node"
	NodeIP      = "10.95.0.1"
	ServiceCIDR = "10.96.0.0/16"
	// ClusterIP is the address of the Service "kubernetes": the first of
	// ServiceCIDR.
	ClusterIP = "10.96.0.1"
	PodCIDR   = "10.94.0.0/24"
	// APIPort is 443, the port of the Service, so that the API server itself
	// answers at ClusterIP and no kube-proxy is needed.
	APIPort = 443
)

// Images that every cluster holds. References are complete, as containerd's
// image store names them.
const (
	PauseImage    = "mica.local/pause:dev"
	WorkloadImage = "mica.local/workload:dev"
)

// Dir is a cluster's directory.
type Dir string

// plain paths need no quotes in any file that names them.
var plain = regexp.MustCompile(`^[A-Za-z0-9._/-]+$`)

// Check reports whether the directory can hold a cluster.
func (d Dir) Check() error {
	if !filepath.IsAbs(string(d)) || filepath.Clean(string(d)) != string(d) || d == "/" {
		return fmt.Errorf("the cluster's directory %q is not a clean absolute path below /: give one, such as %s", string(d), DefaultDir)
	}
	if !plain.MatchString(string(d)) {
		return fmt.Errorf("the cluster's directory %q may have letters, digits, and the characters . _ - only, because scripts and configuration files name it: choose another, such as %s",
			string(d), DefaultDir)
	}
	if len(d) > maxDir {
		return fmt.Errorf("the cluster's directory %s has %d characters and may have %d, because unix socket paths below it may have 107: choose a shorter one, such as %s",
			d, len(d), maxDir, DefaultDir)
	}
	return nil
}

func (d Dir) join(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

// Files about the cluster itself.

// Lock is held by the cluster's keeper; in it stands which process that is.
func (d Dir) Lock() string { return d.join("lock") }

// Spec holds what the cluster was started with.
func (d Dir) Spec() string { return d.join("spec.json") }

// Info holds what clients need to know; it is there once the node is ready.
func (d Dir) Info() string { return d.join("info.json") }

// PID holds the machine's ID of the process that is the namespace's init.
func (d Dir) PID() string { return d.join("pid") }

// Control is the supervisor's socket.
func (d Dir) Control() string { return d.join("control.sock") }

// Failure holds the reason a cluster stopped by itself.
func (d Dir) Failure() string { return d.join("failure") }

// Logs holds a file a component.
func (d Dir) Logs() string { return d.join("logs") }

// Log is a component's log.
func (d Dir) Log(component string) string { return d.join("logs", component+".log") }

// AuditLog has the requests of Mica's ServiceAccounts to the API server. Older parts of it are beside it, with
// their time between its name and its extension.
func (d Dir) AuditLog() string { return d.Log("kube-apiserver-audit") }

// Kubeconfig is the administrator's, for clients on the machine.
func (d Dir) Kubeconfig() string { return d.join("kubeconfig") }

// Directories of the components.

// PKI holds keys and certificates.
func (d Dir) PKI() string { return d.join("pki") }

// Config holds the components' configuration and kubeconfigs.
func (d Dir) Config() string { return d.join("config") }

// Etcd holds etcd's data.
func (d Dir) Etcd() string { return d.join("etcd") }

// Kubelet is kubelet's root directory, in place of /var/lib/kubelet.
func (d Dir) Kubelet() string { return d.join("kubelet") }

// CDI is the directory from which containerd reads CDI specs.
func (d Dir) CDI() string { return d.join("cdi") }

// Driver is the root of the simulated NVIDIA driver.
func (d Dir) Driver() string { return d.join("driver") }

// SimSocket is the NVML simulator's socket.
func (d Dir) SimSocket() string { return d.join("sim.sock") }

// Containerd holds containerd's content and snapshots.
func (d Dir) Containerd() string { return d.join("containerd") }

// Run holds containerd's state and sockets.
func (d Dir) Run() string { return d.join("run") }

// ContainerdSocket is containerd's gRPC and CRI socket.
func (d Dir) ContainerdSocket() string { return d.join("run", "containerd.sock") }

// Shadow holds what stands in for the machine's own directory path in the
// cluster's mount namespace.
func (d Dir) Shadow(path string) string { return d.join("shadow", path) }

// Cgroup is the pods' cgroup, below the root of every hierarchy. The machine's
// cgroups are one name space, so the whole path names it.
func (d Dir) Cgroup() string {
	sum := sha256.Sum256([]byte(d))
	return "/mica-" + hex.EncodeToString(sum[:6])
}

// CgroupMade is there when the cluster has made its cgroup: one that it only
// found belongs to others.
func (d Dir) CgroupMade() string { return d.join("cgroup") }
