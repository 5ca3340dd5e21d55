package abi_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestClientInC runs a client that shares its memory with the shim under the
// sanitizers: what the shim reads or writes beyond what a caller has is found.
func TestClientInC(t *testing.T) {
	d := start(t, "p5.48xlarge")
	client := filepath.Join(t.TempDir(), "client")
	sources := []string{"testdata/client.c"}
	for _, name := range []string{"nvml", "marshal", "connection", "address"} {
		sources = append(sources, "../shim/"+name+".c")
	}
	arguments := append([]string{
		"-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Wno-deprecated-declarations",
		"-fsanitize=address,undefined", "-fno-sanitize-recover=all",
		"-I", filepath.Dir(readHeader(t).Path), "-o", client}, sources...)
	if out, err := output(exec.Command("gcc", append(arguments, "-lpthread")...)); err != nil {
		t.Fatalf("build the client: %v\n%s", err, out)
	}
	cmd := exec.Command(client)
	cmd.Env = append(os.Environ(), "NVML_SIM_SOCKET="+d.socket())
	if out, err := output(cmd); err != nil || out != "all is well" {
		t.Errorf("the client ended with %v:\n%s", err, out)
	}
}
