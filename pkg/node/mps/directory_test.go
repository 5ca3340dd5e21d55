package mps

import (
	"context"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/test/fixture"
)

func TestWithoutASupervisor(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		err := d.Start(t.Context(), wanted())
		fixture.Sentence(t, err, "gpu-0-mps", "no MPS supervisor runs on this node", "mps.enabled=true")
		if !errors.Is(err, errNoSupervisor) {
			t.Errorf("got %v", err)
		}
		// The remains of a killed supervisor.
		must(t, os.MkdirAll(d.root.place("gpu-0-mps").Pipe(), 0o755))
		must(t, writeStatus(d, Status{Daemon: wanted(), State: Ready}))
		fixture.Sentence(t, d.Start(t.Context(), wanted()), "no MPS supervisor")
		stop(t, d, "gpu-0-mps")
		expectNothing(t, d)
	})
}

func TestASupervisorThatComesBackIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		done := make(chan error)
		go func() { done <- d.Start(t.Context(), wanted()) }()
		time.Sleep(supervisorWait - time.Second)
		supervise(t, d, &fakeRunner{})
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestAStartThatIsCutOffHasTheState(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		runner := running(t, d)
		runner.die(d.root.place("gpu-0-mps"), "signal: killed")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		fixture.Sentence(t, d.Start(ctx, wanted()), "deadline exceeded", "it is starting", "signal: killed")
	})
}

func TestAStopThatIsCutOff(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		supervise(t, d, &fakeRunner{deaf: true, stubborn: true})
		start(t, d, wanted())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		fixture.Sentence(t, d.Stop(ctx, "gpu-0-mps"), "stop MPS control daemon gpu-0-mps", "deadline exceeded", "the supervisor has not removed it yet")
		// If requested again while it is stopping, it is started again.
		start(t, d, wanted())
	})
}

func TestADaemonWithOtherSettingsIsNotTouched(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		running(t, d)
		other := wanted()
		other.ThreadPercentage = 50
		err := d.Start(t.Context(), other)
		fixture.Sentence(t, err, "gpu-0-mps", "one of that name already: it serves GPU-a, GPU-b with other limits or devices")
		if !errors.Is(err, ErrOther) {
			t.Errorf("got %v", err)
		}
		if got := status(t, d, "gpu-0-mps"); !got.Daemon.equal(wanted()) {
			t.Errorf("status is %+v", got)
		}
	})
}

func TestDaemonsThatCannotBe(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Daemon)
		want   string
	}{
		"a path as a name":           {func(d *Daemon) { d.ID = "../x" }, `"../x" cannot be the name`},
		"no name":                    {func(d *Daemon) { d.ID = "" }, `"" cannot be the name`},
		"a hidden name":              {func(d *Daemon) { d.ID = ".x" }, "cannot be the name"},
		"a name of our own":          {func(d *Daemon) { d.ID = "shm" }, `"shm" cannot be the name`},
		"a long name":                {func(d *Daemon) { d.ID = strings.Repeat("x", 101) }, "cannot be the name"},
		"no device":                  {func(d *Daemon) { d.Devices = nil }, "no device"},
		"a list as a device":         {func(d *Daemon) { d.Devices = []string{"a,b"} }, `"a,b"`},
		"a device without a name":    {func(d *Daemon) { d.Devices = []string{""} }, "no UUID"},
		"too many multiprocessors":   {func(d *Daemon) { d.ThreadPercentage = 101 }, "at most 100"},
		"negative multiprocessors":   {func(d *Daemon) { d.ThreadPercentage = -1 }, "at most 100"},
		"limits of too many devices": {func(d *Daemon) { d.MemoryBytes = make([]uint64, 3) }, "for 3 devices and serves 2"},
		"next to no memory":          {func(d *Daemon) { d.MemoryBytes = []uint64{1000} }, "the least is 1048576"},
		"a socket's path too long":   {func(d *Daemon) { d.ID = strings.Repeat("x", 90) }, "choose a shorter --mps-root"},
	} {
		t.Run(name, func(t *testing.T) {
			d, daemon := NewDirectory(t.TempDir()), wanted()
			tc.change(&daemon)
			fixture.Sentence(t, d.Start(t.Context(), daemon), tc.want)
			expectNothing(t, d)
		})
	}
	fixture.Sentence(t, NewDirectory(t.TempDir()).Stop(t.Context(), "../x"), `"../x" cannot be the name`)
}

// A plugin that has restarted does not announce the restart again.
func TestARestartIsAnnouncedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		running(t, d)
		restarted := Status{Daemon: wanted(), Restarts: 2}
		if d.Announced(restarted) {
			t.Error("it is announced already")
		}
		set := func() {
			must(t, d.SetAnnounced(restarted))
		}
		set()
		if again := (Status{Daemon: wanted(), Restarts: 3}); !NewDirectory(string(d.root)).Announced(restarted) || d.Announced(again) {
			t.Error("another restart is announced")
		}
		stop(t, d, "gpu-0-mps")
		set()
		start(t, d, wanted())
		if d.Announced(restarted) {
			t.Error("a new daemon's restart is taken for the old one's")
		}
	})
}

func TestSharedMemoryIsTheNodes(t *testing.T) {
	d := NewDirectory(t.TempDir())
	fixture.Sentence(t, CheckShm(string(d.root), t.TempDir()), "is not the directory "+d.root.shm(), "mount it there")
	must(t, os.Mkdir(d.root.shm(), 0o700))
	fixture.Sentence(t, CheckShm(string(d.root), t.TempDir()), "is not the directory")
	fixture.Sentence(t, CheckShm(string(d.root), string(d.root)+"/missing"), "look at the shared memory")
	if err := CheckShm(string(d.root), d.root.shm()); err != nil {
		t.Error(err)
	}
}

func TestEdits(t *testing.T) {
	mounts := []*cdispec.Mount{
		{HostPath: "/run/mps/gpu-0-mps/pipe", ContainerPath: "/tmp/nvidia-mps", Options: []string{"ro", "bind", "nosuid", "nodev", "noexec"}},
		{HostPath: "/run/mps/shm", ContainerPath: "/dev/shm", Options: []string{"rw", "bind", "nosuid", "nodev", "noexec"}},
	}
	for name, tc := range map[string]struct {
		limits Limits
		want   []string
	}{
		"no limits": {Limits{}, nil},
		"both":      {Limits{MemoryBytes: 30 << 30, Cores: 40}, []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=30720M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40"}},
		"rounded":   {Limits{MemoryBytes: 2<<20 + 1}, []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2M"}},
	} {
		t.Run(name, func(t *testing.T) {
			want := cdispec.ContainerEdits{Env: append([]string{"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"}, tc.want...), Mounts: mounts}
			if got := NewDirectory("/run/mps/").Edits("gpu-0-mps", tc.limits); !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// After a downgrade of the plugin, or while two versions run.
func TestADaemonThatANewerVersionAskedForIsNotReplaced(t *testing.T) {
	bubble(t, func(t *testing.T, d *Directory) {
		runner := running(t, d)
		content, err := os.ReadFile(d.root.spec("gpu-0-mps"))
		must(t, err)
		newer := strings.Replace(string(content), "{", `{"nice":true,`, 1)
		must(t, os.WriteFile(d.root.spec("gpu-0-mps"), []byte(newer), 0o600))
		other := wanted()
		other.ThreadPercentage = 50
		err = d.Start(t.Context(), other)
		fixture.Sentence(t, err, "gpu-0-mps", "written by another version", "upgrade this plugin")
		if !errors.Is(err, ErrOther) { // without clients, it is stopped and started again
			t.Errorf("got %v", err)
		}
		time.Sleep(2 * resync)
		if runner.started() != 1 || runner.running() != 1 {
			t.Errorf("started %d times, %d run", runner.started(), runner.running())
		}
		stop(t, d, "gpu-0-mps")
		expectNothing(t, d)
	})
}
