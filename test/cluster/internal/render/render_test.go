package render

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/test/cluster/internal/pki"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestNodeFilesMatchTheGoldenFiles(t *testing.T) {
	hybrid := Node{
		Dir:         "/var/lib/mica",
		CNIBin:      "/cache/cni/bin",
		Runc:        "/cache/runc/bin/runc",
		Snapshotter: "overlayfs",
		CgroupV1:    true,
	}
	unified := hybrid
	unified.CgroupV1, unified.SysResource, unified.Snapshotter = false, true, "native"
	for name, node := range map[string]Node{"cgroup-v1": hybrid, "cgroup-v2": unified} {
		t.Run(name, func(t *testing.T) {
			files, err := node.Files()
			if err != nil {
				t.Fatal(err)
			}
			for path, text := range files {
				compare(t, filepath.Join("testdata", name, filepath.Base(path)+".golden"), text)
			}
		})
	}
}

func compare(t *testing.T, golden string, text []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatalf("%v: run the test with -update", err)
	}
	if string(want) != string(text) {
		t.Errorf("%s differs; it would be:\n%s", golden, text)
	}
}

func TestKubeconfigHoldsTheClientsCertificates(t *testing.T) {
	dir := t.TempDir()
	authority, err := pki.NewAuthority(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	if err := authority.Issue(pki.Leaf{File: "admin", User: "admin"}); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := NewKubeconfig("https://127.0.0.1:1", dir, "admin")
	if err != nil {
		t.Fatal(err)
	}
	text, err := kubeconfig.Text()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"server: https://127.0.0.1:1\n",
		"certificate-authority-data: " + kubeconfig.Authority + "\n",
		"client-certificate-data: " + kubeconfig.Certificate + "\n",
		"client-key-data: " + kubeconfig.Key + "\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the kubeconfig lacks %q:\n%s", want, text)
		}
	}
}

func TestKubeconfigWithoutCertificatesNamesTheClient(t *testing.T) {
	_, err := NewKubeconfig("https://127.0.0.1:1", t.TempDir(), "admin")
	if err == nil || !strings.Contains(err.Error(), "the certificates of admin") {
		t.Errorf("got %v", err)
	}
}
