package main

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestOncePrintsEnvironmentAndListing(t *testing.T) {
	bin := t.TempDir()
	script := "#!/bin/sh\necho GPU 0: $@\n"
	if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":/bin:/usr/bin")
	t.Setenv("NVIDIA_VISIBLE_DEVICES", "void")
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps")
	t.Setenv("OTHER", "no")
	var out strings.Builder
	if err := run([]string{"once"}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"env CUDA_MPS_PIPE_DIRECTORY=/tmp/mps\n", "env NVIDIA_VISIBLE_DEVICES=void\n", "GPU 0: -L\n", "compute mode GPU 0: --query-gpu=compute_mode --format=csv,noheader\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "OTHER") {
		t.Errorf("a variable of no concern is in:\n%s", out.String())
	}
}

func TestOnceFailsWithNvidiaSMI(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte("#!/bin/sh\necho broken; exit 9\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":/bin")
	var out strings.Builder
	if err := run([]string{"once"}, &out); err == nil || !strings.Contains(out.String(), "broken") {
		t.Errorf("got %v and:\n%s", err, out.String())
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for verb, want := range map[string]string{"ls": "a\n", "cat": "text"} {
		operand := dir
		if verb == "cat" {
			operand = filepath.Join(dir, "a")
		}
		var out strings.Builder
		if err := run([]string{verb, operand}, &out); err != nil || out.String() != want {
			t.Errorf("%s gives %q, %v", verb, out.String(), err)
		}
		if err := run([]string{verb, filepath.Join(dir, "missing")}, &out); err == nil {
			t.Errorf("%s of a missing file succeeds", verb)
		}
	}
}

func TestMPSWithoutADaemon(t *testing.T) {
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", t.TempDir())
	var out strings.Builder
	if err := run([]string{"mps"}, &out); err == nil || !strings.Contains(err.Error(), "no MPS control daemon") || out.Len() > 0 {
		t.Errorf("got %v and:\n%s", err, out.String())
	}
}

func TestServeAnswersUntilItIsStopped(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := serve(port, nil); err == nil || !strings.Contains(err.Error(), "listening") {
		t.Errorf("at a port in use: got %v", err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan os.Signal, 1), make(chan error, 1)
	go func() { done <- serve(port, stop) }()
	for {
		response, err := http.Get("http://127.0.0.1:" + port + "/health")
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK {
				t.Errorf("got %s", response.Status)
			}
			break
		}
		select {
		case err := <-done:
			t.Fatal(err)
		case <-t.Context().Done():
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	stop <- os.Interrupt
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestUnknownVerb(t *testing.T) {
	if err := run([]string{"dance"}, &strings.Builder{}); err == nil || !strings.Contains(err.Error(), `"dance"`) {
		t.Errorf("got %v", err)
	}
}

func TestDeviceNumbers(t *testing.T) {
	// makedev(3): 12 bits of the major number from bit 8, the minor's low 8
	// bits below and the rest above.
	for device, want := range map[uint64][2]uint32{
		195<<8 | 255:          {195, 255},
		508<<8 | 1:            {508, 1},
		195<<8 | 0x2a | 1<<20: {195, 0x12a},
		0x1000<<32 | 7<<8 | 3: {0x1007, 3},
	} {
		if major(device) != want[0] || minor(device) != want[1] {
			t.Errorf("%#x is %d:%d, want %v", device, major(device), minor(device), want)
		}
	}
}
