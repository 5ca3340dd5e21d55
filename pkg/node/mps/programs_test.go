package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mica-gpu/mica/test/fixture"
)

// processes are those of the place.
func processes(t *testing.T, place Place) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	must(t, err)
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && belongs(pid, place) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// run supervises real processes.
func run(t *testing.T, tools Tools) *Directory {
	t.Helper()
	d := NewDirectory(shortDir(t))
	runIn(t, d, tools)
	return d
}

func runIn(t *testing.T, d *Directory, tools Tools) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- NewSupervisor(string(d.root), NewPrograms(tools)).Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if left := processes(t, d.root.place("gpu-0-mps")); left != nil {
			t.Errorf("processes %v are left", left)
		}
	})
}

func TestAProcessIsADaemon(t *testing.T) {
	d := run(t, controlTools{})
	start(t, d, wanted())
	place := d.root.place("gpu-0-mps")
	if got := processes(t, place); len(got) != 2 {
		t.Errorf("processes are %v, want a daemon and a server", got)
	}
	programs := NewPrograms(controlTools{})
	for question, want := range map[string]string{"devices": "GPU-a,GPU-b\n", "get_default_active_thread_percentage": "25.0\n"} {
		if got, err := programs.Ask(t.Context(), place, question); err != nil || got != want {
			t.Errorf("%s: got %q, %v", question, got, err)
		}
	}
	stop(t, d, "gpu-0-mps")
	if left := processes(t, place); left != nil {
		t.Errorf("processes %v are left", left)
	}
	expectNothing(t, d)
	_, err := programs.Ask(t.Context(), place, "devices")
	fixture.Sentence(t, err, "exit status 1", "Cannot find MPS control daemon process")
}

func TestADaemonThatIsKilledLeavesNoServerToItsSuccessor(t *testing.T) {
	d := run(t, controlTools{})
	start(t, d, wanted())
	place := d.root.place("gpu-0-mps")
	before := processes(t, place)
	daemon := 0
	for _, pid := range before {
		if parent(t, pid) == os.Getpid() {
			daemon = pid
		}
	}
	if daemon == 0 {
		t.Fatalf("none of the processes %v is the daemon", before)
	}
	must(t, syscall.Kill(daemon, syscall.SIGKILL))
	fixture.Eventually(t, "another daemon", func() error {
		if got := status(t, d, "gpu-0-mps"); got.State != Ready || got.Restarts != 1 {
			return fmt.Errorf("status is %+v", got)
		}
		return nil
	})
	for _, pid := range processes(t, place) {
		if pid == before[0] || pid == before[1] {
			t.Errorf("process %d is left of the killed daemon", pid)
		}
	}
}

func parent(t *testing.T, pid int) int {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for line := range strings.Lines(string(content)) {
		if value, found := strings.CutPrefix(line, "PPid:"); found {
			parent, err := strconv.Atoi(strings.TrimSpace(value))
			must(t, err)
			return parent
		}
	}
	return 0
}

// Clients get the device nodes of the driver container.
func TestADaemonHasTheDeviceNodesOfItsClients(t *testing.T) {
	dev := t.TempDir()
	for _, err := range []error{
		os.Mkdir(filepath.Join(dev, "shm"), 0o755),
		os.WriteFile(filepath.Join(dev, "nvidiactl"), nil, 0o600),
		unix.Mknod(filepath.Join(dev, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
	} {
		must(t, err)
	}
	d := run(t, controlTools{dev: dev})
	start(t, d, wanted())
	shm, err := os.Stat(d.root.shm())
	must(t, err)
	for _, pid := range processes(t, d.root.place("gpu-0-mps")) {
		own := filepath.Join("/proc", strconv.Itoa(pid), "root", "dev")
		if _, err := os.Stat(filepath.Join(own, "nvidiactl")); err != nil {
			t.Errorf("process %d: %v", pid, err)
		}
		if seen, err := os.Stat(filepath.Join(own, "shm")); err != nil || !os.SameFile(seen, shm) {
			t.Errorf("process %d has other shared memory than clients (%v)", pid, err)
		}
	}
	if own, err := os.Stat("/dev/shm"); err != nil || os.SameFile(own, shm) {
		t.Errorf("the /dev of this process is another now (%v)", err)
	}
}

func TestAnOldDaemonServesOneUser(t *testing.T) {
	d := run(t, controlTools{old: true})
	start(t, d, wanted())
	if got := status(t, d, "gpu-0-mps"); !got.SingleUser {
		t.Errorf("status is %+v", got)
	}
}

// Only a PID namespace ends all processes of a killed container, and the supervisor has none.
func TestASupervisorThatIsKilledTakesItsDaemonsWithIt(t *testing.T) {
	d := killed(t)
	place := d.root.place("gpu-0-mps")
	fixture.Eventually(t, "the end of the daemon", func() error {
		if left := processes(t, place); len(left) > 1 { // the server lives until it is swept
			return fmt.Errorf("processes %v are left", left)
		}
		return nil
	})
	runIn(t, d, controlTools{})
	start(t, d, wanted())
	if got := status(t, d, "gpu-0-mps"); got.Restarts != 1 || len(processes(t, place)) != 2 {
		t.Errorf("status is %+v, processes are %v", got, processes(t, place))
	}
}

// killed returns the directory of a supervisor that was killed while its daemon ran.
func killed(t *testing.T) *Directory {
	t.Helper()
	d := NewDirectory(shortDir(t))
	own, err := os.Executable()
	must(t, err)
	supervisor := exec.Command(own, string(d.root))
	supervisor.Env = append(os.Environ(), actVariable+"="+actSupervise)
	must(t, supervisor.Start())
	start(t, d, wanted())
	must(t, supervisor.Process.Kill())
	_ = supervisor.Wait() // it was killed
	return d
}

// A daemon that was stopped without a supervisor has no files. The plugin does not kill its server.
func TestServersWithoutFilesAreEnded(t *testing.T) {
	d := killed(t)
	stop(t, d, "gpu-0-mps")
	place := d.root.place("gpu-0-mps")
	if len(processes(t, place)) == 0 {
		t.Fatal("there is nothing to end")
	}
	runIn(t, d, controlTools{})
	fixture.Eventually(t, "the end of the server", func() error {
		if left := processes(t, place); left != nil {
			return fmt.Errorf("processes %v are left", left)
		}
		return nil
	})
}

func TestAQuestionThatIsNotAnsweredIsGivenUp(t *testing.T) {
	d := run(t, controlTools{})
	start(t, d, wanted())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := NewPrograms(controlTools{}).Ask(ctx, d.root.place("gpu-0-mps"), "hang")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// missingTools is a driver root without MPS.
type missingTools struct{}

var errMissing = errors.New("nvidia-cuda-mps-control is missing: install it")

func (missingTools) Find(string) (string, error)    { return "", errMissing }
func (missingTools) Environment() ([]string, error) { return nil, nil }
func (missingTools) Devices() string                { return "/dev" }

func TestADriverWithoutMPS(t *testing.T) {
	d := run(t, missingTools{})
	fixture.Sentence(t, d.Start(t.Context(), wanted()), "start MPS control daemon gpu-0-mps", errMissing.Error())
}
