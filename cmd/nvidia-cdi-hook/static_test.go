package main

import (
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The container runtime starts the hook on the host, whose C library may be older
// than that of the image, or not be glibc.
func TestTheHookNeedsNothingOfTheHost(t *testing.T) {
	hook := filepath.Join(t.TempDir(), "nvidia-cdi-hook")
	if out, err := exec.Command("make", "-C", "../..", "cdi-hook", "CDI_HOOK="+hook).CombinedOutput(); err != nil {
		t.Fatalf("build the hook: %v\n%s", err, out)
	}
	file, err := elf.Open(hook)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC }) {
		t.Error("it is linked dynamically")
	}
	bundle := t.TempDir()
	root := filepath.Join(bundle, "rootfs")
	if err := os.MkdirAll(filepath.Join(root, "usr/lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"ociVersion":"1.2.0","root":{"path":"rootfs"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	state, err := json.Marshal(map[string]string{"ociVersion": "1.2.0", "id": "c", "status": "creating", "bundle": bundle})
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(hook, "batch", `["create-symlinks","--link","libcuda.so.1::/usr/lib/libcuda.so"]`)
	command.Env = []string{} // as a runtime starts it
	command.Stdin = strings.NewReader(string(state))
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("run the hook: %v\n%s", err, out)
	}
	if target, err := os.Readlink(filepath.Join(root, "usr/lib/libcuda.so")); err != nil || target != "libcuda.so.1" {
		t.Errorf("the container has the link to %q (%v)", target, err)
	}
}
