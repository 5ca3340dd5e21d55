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
	t.Parallel()
	d := start(t, "p5.48xlarge")
	client := filepath.Join(t.TempDir(), "client")
	sources := []string{"testdata/client.c"}
	for _, name := range []string{"nvml", "marshal", "connection", "nodes", "address"} {
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

func TestCUDAStandIn(t *testing.T) {
	t.Parallel()
	d := start(t, "g5.12xlarge")
	client := filepath.Join(t.TempDir(), "cuda")
	if out, err := output(exec.Command("gcc", "-Wall", "-Wextra", "-o", client, "testdata/cuda.c", "-ldl")); err != nil {
		t.Fatalf("build the client: %v\n%s", err, out)
	}
	run := func() (string, error) {
		cmd := exec.Command(client, filepath.Join(d.root, "usr/lib64/libcuda.so.1"))
		cmd.Env = append(os.Environ(), "NVML_SIM_SOCKET=")
		return output(cmd)
	}
	if out, err := run(); err != nil || out != "3 1 0 0:13000 0:4 101 0:3 0:NVIDIA A10G" {
		t.Errorf("the CUDA stand-in answers %q (%v)", out, err)
	}
	d.kill()
	if out, err := run(); err != nil || out != "3 1 802 3:0 3:0 3 3:-1 3:" {
		t.Errorf("without a driver, the CUDA stand-in answers %q (%v)", out, err)
	}
}
