// Package supervisor owns a running cluster from the inside of its sandbox: it
// writes the configuration, starts the components in order, watches them, and
// obeys the control socket. It never leaves the sandbox and removes nothing
// from disk: the keeper outside does.
package supervisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mica-gpu/mica/test/cluster/internal/layout"
)

// Spec is what a cluster is started with.
type Spec struct {
	Dir layout.Dir `json:"dir"`
	// Checkout is the project's directory that the cluster was started from.
	Checkout string `json:"checkout"`
	// Binaries are paths by name.
	Binaries map[string]string `json:"binaries"`
	// Images are archives to import at start.
	Images []string `json:"images"`
	// APIPort is the port on the machine's 127.0.0.1 that leads to the API
	// server.
	APIPort int `json:"apiPort"`
	// SimNode is the machine that the NVML simulator plays: empty for none.
	SimNode string `json:"simNode,omitempty"`
	// Emulate is the version of Kubernetes, such as 1.34, that the control plane behaves as: with its
	// APIs, gates and defaults. Empty for what it is.
	Emulate string `json:"emulate,omitempty"`
	// DriverRoot is where the NVIDIA driver's files are, real or simulated.
	// Empty when the cluster has none.
	DriverRoot string `json:"driverRoot,omitempty"`
}

// Save writes the spec into the cluster's directory.
func (s Spec) Save() error { return saveJSON(s.Dir.Spec(), s) }

// LoadSpec reads the spec of the cluster in dir.
func LoadSpec(dir layout.Dir) (Spec, error) {
	var spec Spec
	return spec, loadJSON(dir.Spec(), &spec)
}

// Info is what a client of a running cluster needs to know.
type Info struct {
	Dir              layout.Dir `json:"dir"`
	Kubeconfig       string     `json:"kubeconfig"`
	Server           string     `json:"server"`
	NodeName         string     `json:"nodeName"`
	NodeIP           string     `json:"nodeIP"`
	KubeletRoot      string     `json:"kubeletRoot"`
	CDIRoot          string     `json:"cdiRoot"`
	DriverRoot       string     `json:"driverRoot"`
	SimSocket        string     `json:"simSocket"`
	ContainerdSocket string     `json:"containerdSocket"`
	Logs             string     `json:"logs"`
	Snapshotter      string     `json:"snapshotter"`
	CgroupVersion    int        `json:"cgroupVersion"`
	// BinPath is a PATH prefix that holds kubectl, helm and ctr.
	BinPath string `json:"binPath"`
}

// LoadInfo reads what the cluster in dir wrote when its node was ready.
func LoadInfo(dir layout.Dir) (Info, error) {
	var info Info
	return info, loadJSON(dir.Info(), &info)
}

// Variable is an environment variable for clients of the cluster.
type Variable struct{ Name, Value string }

// Environment is the information as variables.
func (i Info) Environment() []Variable {
	return []Variable{
		{"KUBECONFIG", i.Kubeconfig},
		{"MICA_CLUSTER_DIR", string(i.Dir)},
		{"MICA_NODE_NAME", i.NodeName},
		{"MICA_NODE_IP", i.NodeIP},
		{"MICA_KUBELET_ROOT", i.KubeletRoot},
		{"MICA_CDI_ROOT", i.CDIRoot},
		{"MICA_DRIVER_ROOT", i.DriverRoot},
		{"MICA_SIM_SOCKET", i.SimSocket},
		{"MICA_CONTAINERD_SOCKET", i.ContainerdSocket},
		{"MICA_LOGS", i.Logs},
	}
}

func saveJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", path, err)
	}
	partial := path + ".partial"
	if err := os.WriteFile(partial, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing the cluster's %s: %w", filepath.Base(path), err)
	}
	if err := os.Rename(partial, path); err != nil {
		return fmt.Errorf("writing the cluster's %s: %w", filepath.Base(path), err)
	}
	return nil
}

func loadJSON(path string, value any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the cluster's %s: %w", filepath.Base(path), err)
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("reading the cluster's %s: %w", path, err)
	}
	return nil
}
