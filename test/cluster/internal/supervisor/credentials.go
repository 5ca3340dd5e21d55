package supervisor

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/mica-gpu/mica/test/cluster/internal/layout"
	"github.com/mica-gpu/mica/test/cluster/internal/pki"
	"github.com/mica-gpu/mica/test/cluster/internal/render"
)

// admin is the client leaf of the cluster's administrator, whose group may do
// anything without RBAC saying so.
const admin = "admin"

func leaves() []pki.Leaf {
	return []pki.Leaf{
		{
			File: apiserver,
			User: apiserver,
			Hosts: []string{
				"127.0.0.1", layout.NodeIP, layout.ClusterIP, "localhost", "kubernetes", "kubernetes.default",
				"kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
			},
		},
		{
			File:   kubelet,
			User:   "system:node:" + layout.NodeName,
			Groups: []string{"system:nodes"},
			Hosts:  []string{layout.NodeIP, layout.NodeName},
		},
		{File: "kubelet-client", User: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}},
		{File: controllerManager, User: "system:kube-controller-manager"},
		{File: scheduler, User: "system:kube-scheduler"},
		{File: admin, User: "mica-admin", Groups: []string{"system:masters"}},
	}
}

// writeCredentials makes every key, certificate and kubeconfig.
func writeCredentials(spec Spec) error {
	dir := spec.Dir.PKI()
	authority, err := pki.NewAuthority(dir, "ca")
	if err != nil {
		return err
	}
	for _, leaf := range leaves() {
		if err := authority.Issue(leaf); err != nil {
			return err
		}
	}
	frontProxy, err := pki.NewAuthority(dir, "front-proxy-ca")
	if err != nil {
		return err
	}
	if err := frontProxy.Issue(pki.Leaf{File: "front-proxy-client", User: "front-proxy-client"}); err != nil {
		return err
	}
	if err := pki.WriteKeyPair(dir, "service-accounts"); err != nil {
		return err
	}
	inside := fmt.Sprintf("https://127.0.0.1:%d", layout.APIPort)
	for _, client := range []string{controllerManager, scheduler, kubelet} {
		path := filepath.Join(spec.Dir.Config(), client+".kubeconfig")
		if err := writeKubeconfig(path, inside, dir, client); err != nil {
			return err
		}
	}
	return writeKubeconfig(spec.Dir.Kubeconfig(), server(spec), dir, admin)
}

// server is the API server's URL on the machine.
func server(spec Spec) string { return fmt.Sprintf("https://127.0.0.1:%d", spec.APIPort) }

func writeKubeconfig(path, server, pki, leaf string) error {
	kubeconfig, err := render.NewKubeconfig(server, pki, leaf)
	if err != nil {
		return err
	}
	text, err := kubeconfig.Text()
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("writing the kubeconfig of %s: %w", leaf, err)
	}
	return nil
}
