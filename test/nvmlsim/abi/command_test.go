package abi_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever is wrong with a command is said in one sentence.
func TestCommandLineErrors(t *testing.T) {
	t.Parallel()
	d := start(t, "g6.xlarge")
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte("name: odd\nwheels: 4\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	occupied := t.TempDir()
	if err := os.WriteFile(filepath.Join(occupied, "letter"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	root := func() string { return filepath.Join(t.TempDir(), "root") }
	socket := []string{"--socket", d.socket()}
	for _, test := range []struct {
		arguments []string
		want      string
	}{
		{[]string{"fly"}, `there is no command "fly"`},
		{[]string{"--speed", "9"}, "unknown flag: --speed"},
		{[]string{"status", "--socket", "/nowhere/s"}, "no simulator answers on /nowhere/s"},
		{append(socket, "status", "now"), "status takes no arguments"},
		{append(socket, "xid", "0"), "xid takes the arguments GPU XID"},
		{append(socket, "xid", "1", "79"), "has no GPU 1"},
		{append(socket, "lose", "9"), "has no GPU 9"},
		{append(socket, "return", "0"), "is present, so that it cannot become present"},
		{append(socket, "latency", "nvmlInit", "soon"), `DURATION "soon"`},
		{append(socket, "latency", "nvmlFly", "1s"), "models no function"},
		{append(socket, "fail", "nvmlInit", "EXPLODED"), `RETURN "EXPLODED"`},
		{append(socket, "fail", "nvmlDeviceGetUUID", "9", "--after"), "has no effect"},
		{append(socket, "fabric", "completed"), "has no NVSwitch"},
		{append(socket, "driver"), "set --library, --module or both"},
		{append(socket, "mig", "mode", "0", "on"), "cannot be partitioned"},
		{append(socket, "mig", "create", "0"), "takes the arguments GPU PROFILE[@START]"},
		{append(socket, "use", "0"), "set --utilization, --memory or a flag of a sensor"},
		{append(socket, "use", "0", "--memory", "1Ti"), "1099511627776 cannot be in use"},
		{append(socket, "reset", "0"), "cannot be partitioned"},
		{[]string{"serve", "--root", root()}, "serve needs --node and --root"},
		{[]string{"serve", "--node", "p9.huge", "--root", root()}, `no ready-made machine "p9.huge"`},
		{[]string{"serve", "--node", "/nowhere/node.yaml", "--root", root()}, "no such file"},
		{[]string{"serve", "--node", file, "--root", root()}, `unknown field "wheels"`},
		{[]string{"serve", "--node", "g6.xlarge", "--root", occupied}, "is not empty and was not made by the simulator"},
		{[]string{"serve", "--node", "g6.xlarge", "--root", root(), "--library-dir", occupied}, "build it with make nvml-sim"},
		{[]string{"serve", "--node", "g6.xlarge", "--root", root(), "--socket", "/" + strings.Repeat("s", 107)}, "choose a shorter one"},
		{[]string{"serve", "--node", "g6.xlarge", "--root", root(), "--socket", d.socket()}, "another process listens on"},
		{[]string{"serve", "--node", "g6.xlarge", "--root", root(), "--socket", file}, "is in the way of the socket"},
	} {
		t.Run(strings.Join(test.arguments, " "), func(t *testing.T) {
			out, err := sim(test.arguments...)
			if err == nil {
				t.Fatalf("it succeeded:\n%s", out)
			}
			if !strings.HasPrefix(out, "nvml-sim: ") || strings.Contains(out, "\n") || !strings.Contains(out, test.want) {
				t.Errorf("it says %q, want one line with %q", out, test.want)
			}
		})
	}
	if entries, err := os.ReadDir(occupied); err != nil || len(entries) != 1 {
		t.Errorf("the occupied directory holds %v (%v)", entries, err)
	}
}

func TestWhichSimulatorMustBeSaid(t *testing.T) {
	t.Setenv("NVML_SIM_SOCKET", "")
	if out, err := sim("status"); err == nil || !strings.Contains(out, "set --socket or NVML_SIM_SOCKET") {
		t.Errorf("status without a socket: %v\n%s", err, out)
	}
}

func TestUse(t *testing.T) {
	t.Parallel()
	d := start(t, "mig-static")
	state := d.state()
	var want []string
	for _, gpu := range state.GPUs {
		if len(gpu.Instances) == 0 {
			continue
		}
		gi := gpu.Instances[0].ID
		if out, err := d.sim("use", fmt.Sprint(gpu.Index), fmt.Sprint(gi), "--utilization", "35", "--memory", "2Gi"); err != nil {
			t.Fatalf("use GPU instance %d: %v\n%s", gi, err, out)
		}
		want = append(want, fmt.Sprintf("GPU instance %d of GPU %d is 35%% utilised, with 2048 MiB of its memory taken", gi, gpu.Index))
	}
	out, err := d.sim("status")
	if err != nil || len(want) == 0 {
		t.Fatalf("status: %v, want %q", err, want)
	}
	for _, line := range want {
		if !strings.Contains(out, line) {
			t.Errorf("status does not say %q:\n%s", line, out)
		}
	}
}
