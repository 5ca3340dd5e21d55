package abi_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// roleVariable makes this test binary another client process.
const roleVariable = "NVML_SIM_TEST_ROLE"

// play does what a role is for and returns the exit status. A role talks to the
// library that the driver root has, as a client on the machine does.
func play(role string) int {
	verb, root, _ := strings.Cut(role, " ")
	root, argument, _ := strings.Cut(root, " ")
	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(root, "usr/lib64/libnvidia-ml.so.1")))
	if ret := lib.Init(); ret != nvml.SUCCESS {
		fmt.Println("initialise the library:", ret)
		return 1
	}
	device, ret := lib.DeviceGetHandleByIndex(0)
	if ret != nvml.SUCCESS {
		fmt.Println("get the handle of GPU 0:", ret)
		return 1
	}
	switch verb {
	case "lookup":
	case "wait":
		ret = waitForEvent(lib, device)
	case "cdi":
		if err := printNodes(lib, root, argument); err != nil {
			fmt.Println("generate a CDI specification:", err)
			return 1
		}
	case "edits":
		if err := deriveEdits(lib, root); err != nil {
			fmt.Println("derive CDI edits:", err)
			return 1
		}
	default:
		fmt.Println("there is no role", verb)
		return 1
	}
	if ret != nvml.SUCCESS {
		fmt.Println(verb, ret)
		return 1
	}
	return 0
}

func waitForEvent(lib nvml.Interface, device nvml.Device) nvml.Return {
	set, ret := lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return ret
	}
	if ret := device.RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
		return ret
	}
	fmt.Println("waiting")
	_, ret = set.Wait(uint32(10 * time.Minute / time.Millisecond))
	return ret
}

func roleCommand(d *daemon, verb string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+verb+" "+d.root, "NVML_SIM_SOCKET=")
	return cmd
}

func TestDaemonKilled(t *testing.T) {
	d := start(t, "g5.12xlarge").use()
	lib := library()
	returns(t, "Init", nvml.SUCCESS, lib.Init())
	first := device(t, lib, 0)
	set, ret := lib.EventSetCreate()
	returns(t, "EventSetCreate", nvml.SUCCESS, ret)
	returns(t, "RegisterEvents", nvml.SUCCESS, first.RegisterEvents(nvml.EventTypeXidCriticalError, set))
	waited := make(chan nvml.Return, 1)
	go func() {
		_, ret := set.Wait(uint32(10 * time.Minute / time.Millisecond))
		waited <- ret
	}()
	d.kill()

	select {
	case ret := <-waited:
		returns(t, "a wait during which the daemon died", nvml.ERROR_UNKNOWN, ret)
	case <-time.After(patience):
		t.Fatal("a wait does not return although the daemon is dead")
	}
	_, ret = first.GetUUID()
	returns(t, "a call with a dead daemon", nvml.ERROR_UNKNOWN, ret)
	_, ret = lib.DeviceGetCount()
	returns(t, "another", nvml.ERROR_UNKNOWN, ret)
	_, ret = first.GetFanSpeed()
	returns(t, "a call that is not modelled", nvml.ERROR_UNKNOWN, ret)
	returns(t, "Init with a dead daemon", nvml.ERROR_DRIVER_NOT_LOADED, library().Init())
	returns(t, "Shutdown with a dead daemon", nvml.SUCCESS, lib.Shutdown())

	again := startIn(t, "g5.12xlarge", d.root).use()
	if _, ret := device(t, initialised(t), 0).GetUUID(); ret != nvml.SUCCESS {
		t.Errorf("a call to the new daemon returned %v", ret)
	}
	again.stop()
}

func TestFaultsFromTheCommandLine(t *testing.T) {
	d := start(t, "p4d.24xlarge").use()
	lib := initialised(t)
	run := func(arguments ...string) {
		t.Helper()
		if out, err := d.sim(arguments...); err != nil {
			t.Fatalf("nvml-sim %v: %v\n%s", arguments, err, out)
		}
	}

	run("latency", "*", "1ms")
	if out, err := d.sim("status"); err != nil || !strings.Contains(out, "* takes 1ms") {
		t.Errorf("status: %v\n%s", err, out)
	}
	run("clear")
	if out, err := d.sim("calls"); err != nil || !strings.Contains(out, "1  nvmlInit_v2\n") || !strings.Contains(out, "  in all") {
		t.Errorf("calls: %v\n%s", err, out)
	}
	run("fail", "nvmlDeviceGetName", "GPU_IS_LOST", "--times", "1", "--gpu", "2")
	for i, want := range []nvml.Return{nvml.SUCCESS, nvml.SUCCESS, nvml.ERROR_GPU_IS_LOST, nvml.SUCCESS} {
		_, ret := device(t, lib, i).GetName()
		returns(t, fmt.Sprintf("GetName of GPU %d", i), want, ret)
	}
	_, ret := device(t, lib, 2).GetName()
	returns(t, "GetName once more", nvml.SUCCESS, ret)

	_, ret = device(t, lib, 0).GetFanSpeed()
	returns(t, "a function that is not modelled", nvml.ERROR_NOT_SUPPORTED, ret)

	const delay = 150 * time.Millisecond
	run("latency", "nvmlDeviceGetCount", delay.String()) // stands for nvmlDeviceGetCount_v2
	begin := time.Now()
	_, ret = lib.DeviceGetCount()
	returns(t, "DeviceGetCount", nvml.SUCCESS, ret)
	if took := time.Since(begin); took < delay {
		t.Errorf("a call with a latency of %s took %s", delay, took)
	}
	run("latency", "nvmlDeviceGetCount", "0s")

	set, ret := lib.EventSetCreate()
	returns(t, "EventSetCreate", nvml.SUCCESS, ret)
	returns(t, "RegisterEvents", nvml.SUCCESS, device(t, lib, 7).RegisterEvents(nvml.EventTypeXidCriticalError, set))
	run("xid", "7", "79", "--gi", "3", "--ci", "0")
	event, ret := set.Wait(uint32(patience / time.Millisecond))
	returns(t, "Wait", nvml.SUCCESS, ret)
	if event.EventData != 79 || event.GpuInstanceId != 3 || event.ComputeInstanceId != 0 {
		t.Errorf("the event is %+v", event)
	}
	run("lose", "1")
	if out, err := d.sim("status"); err != nil || strings.Count(out, "lost") != 1 || strings.Count(out, "present") != 7 {
		t.Errorf("status: %v\n%s", err, out)
	}
	run("return", "1")
	run("xid", "7", "31")
	if event, ret = set.Wait(uint32(patience / time.Millisecond)); event.GpuInstanceId != model.WholeGPU {
		t.Errorf("the event of a whole GPU is %+v (%v)", event, ret)
	}
}

// A pod may have the driver root mounted deeper than a socket address can say.
func TestSocketAtALongPath(t *testing.T) {
	d := start(t, "g6.xlarge")
	deep := filepath.Join(t.TempDir(), strings.Repeat("deep/", 40))
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(deep, "socket")
	if err := os.Symlink(d.socket(), long); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NVML_SIM_SOCKET", long)
	initialised(t)
}
