// Package render owns the components' configuration files: it turns what was
// found about the machine into their text. It writes no file and knows no
// command line.
package render

import (
	"bytes"
	"embed"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"text/template"

	"github.com/mica-gpu/mica/test/cluster/internal/layout"
)

//go:embed templates
var templates embed.FS

var parsed = template.Must(template.New("").Option("missingkey=error").ParseFS(templates, "templates/*"))

// Node is what the node's configuration depends on.
type Node struct {
	Dir layout.Dir
	// CNIBin is the directory of the CNI plugins, Runc the path of runc.
	CNIBin, Runc string
	// BaseSpec is the file of the runtime specification that containers' own are made from; empty: containerd's.
	BaseSpec string
	// Snapshotter is containerd's.
	Snapshotter string
	// CgroupV1 says that the machine's controllers are those of cgroup v1.
	CgroupV1 bool
	// SysResource says that processes have CAP_SYS_RESOURCE.
	SysResource bool
}

// NodeIP is for the templates.
func (Node) NodeIP() string { return layout.NodeIP }

// PodCIDR is for the templates.
func (Node) PodCIDR() string { return layout.PodCIDR }

// PauseImage is for the templates.
func (Node) PauseImage() string { return layout.PauseImage }

// Files are the node's configuration files by their path below
// layout.Dir.Config.
func (n Node) Files() (map[string][]byte, error) {
	files := map[string][]byte{}
	for name, source := range map[string]string{
		"containerd.toml":      "containerd.toml",
		"cni/10-mica.conflist": "cni.conflist",
		"kubelet.yaml":         "kubelet.yaml",
		"audit.yaml":           "audit.yaml",
	} {
		text, err := execute(source, n)
		if err != nil {
			return nil, err
		}
		files[name] = text
	}
	return files, nil
}

// Kubeconfig is a client's configuration. It holds its certificates, so that
// it can be copied.
type Kubeconfig struct {
	Server, User string
	// Authority, Certificate and Key are base64 of PEM.
	Authority, Certificate, Key string
}

// NewKubeconfig reads the certificates of the client leaf in the directory pki.
func NewKubeconfig(server, pki, leaf string) (Kubeconfig, error) {
	config := Kubeconfig{Server: server, User: leaf}
	for file, field := range map[string]*string{
		"ca.crt":      &config.Authority,
		leaf + ".crt": &config.Certificate,
		leaf + ".key": &config.Key,
	} {
		data, err := os.ReadFile(filepath.Join(pki, file))
		if err != nil {
			return Kubeconfig{}, fmt.Errorf("reading the certificates of %s: %w", leaf, err)
		}
		*field = base64.StdEncoding.EncodeToString(data)
	}
	return config, nil
}

// Text is the file's content.
func (k Kubeconfig) Text() ([]byte, error) { return execute("kubeconfig.yaml", k) }

func execute(name string, data any) ([]byte, error) {
	var text bytes.Buffer
	if err := parsed.ExecuteTemplate(&text, name, data); err != nil {
		return nil, fmt.Errorf("rendering %s: %w", name, err)
	}
	return text.Bytes(), nil
}
