package render

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	unified.BaseSpec = "/var/lib/mica/config/base-spec.json"
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

func TestKubeconfigWithoutCertificatesNamesTheClient(t *testing.T) {
	_, err := NewKubeconfig("https://127.0.0.1:1", t.TempDir(), "admin")
	if err == nil || !strings.Contains(err.Error(), "the certificates of admin") {
		t.Errorf("got %v", err)
	}
}
