package driver

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// socket makes one on which a process listens, or listened until it was killed.
func socket(t *testing.T, path string, alive bool) string {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	listener.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = listener.Close() })
	if !alive {
		must(t, listener.Close())
	}
	return path
}

func TestSocketsOfPluginsThatDied(t *testing.T) {
	const own, dead, alive, lone = "00000000-0000-4000-8000-000000000000", "11111111-0000-4000-8000-000000000000",
		"22222222-0000-4000-8000-000000000000", "33333333-0000-4000-8000-000000000000"
	o := options(t, apiserver.New(), newHardware(t))
	o.PodUID = own
	d := newDriver(t, o)
	pair := func(pod types.UID, alive bool) []string {
		registrar, dra := d.socketsOf(pod)
		return []string{socket(t, registrar, alive), socket(t, dra, alive)}
	}
	reg := func(name string) string { return filepath.Join(o.RegistrarDir, name+"-reg.sock") }
	gone := append(pair(dead, false), pair("", false)...)
	gone = append(gone, socket(t, reg(o.Name+"-"+lone), false))
	stay := append(pair(own, false), pair(alive, true)...)
	for _, name := range []string{"gpu.example.com", "gpu.example.com-" + dead, o.Name + "-test", o.Name + "-test-" + dead} {
		stay = append(stay, socket(t, reg(name), false)) // another driver's
	}
	noSocket := reg(o.Name + "-44444444-0000-4000-8000-000000000000")
	must(t, os.WriteFile(noSocket, nil, 0o600))
	stay = append(stay, noSocket)
	must(t, d.removeDeadSockets(t.Context()))
	for _, path := range gone {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	for _, path := range stay {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
}

// A long path makes the helper shorten the names of registration sockets.
func TestShortenedSocketsOfPluginsThatDied(t *testing.T) {
	const dead = "11111111-0000-4000-8000-000000000000"
	o := options(t, apiserver.New(), newHardware(t))
	o.PodUID = "own"
	o.RegistrarDir = filepath.Join(o.RegistrarDir, strings.Repeat("r", 60-len(o.RegistrarDir)))
	must(t, os.Mkdir(o.RegistrarDir, 0o700))
	d := newDriver(t, o)
	registrar, dra := d.socketsOf(dead)
	if strings.Contains(registrar, dead) {
		t.Fatalf("%s is not shortened", registrar)
	}
	socket(t, registrar, false)
	socket(t, dra, false)
	must(t, d.removeDeadSockets(t.Context()))
	for _, path := range []string{registrar, dra} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// The helper's names are ours, and a process removes what its predecessor left.
func TestAStartRemovesDeadSockets(t *testing.T) {
	o := options(t, apiserver.New(), newHardware(t))
	o.PodUID = "own"
	former := o
	former.PodUID = "11111111-0000-4000-8000-000000000000"
	_, stop := run(t, former)
	register(t, former)
	made := slices.Concat(glob(t, o.RegistrarDir), glob(t, DataDir(o.PluginsDir, o.Name)))
	stop()
	registrar, dra := (&Driver{Options: former}).sockets()
	if want := []string{registrar, dra}; !slices.Equal(made, want) {
		t.Fatalf("the helper made %q, want %q", made, want)
	}
	if base := kubeletplugin.RollingUpdateRegistrarSocketFile(o.RegistrarDir, o.Name, former.PodUID); filepath.Base(registrar) != base {
		t.Errorf("got %s, want %s", registrar, base)
	}
	for _, path := range made {
		socket(t, path, false)
	}
	run(t, o)
	fixture.Eventually(t, "the removal", func() error {
		for _, path := range made {
			if _, err := os.Lstat(path); !os.IsNotExist(err) {
				return errors.New(path + " is left")
			}
		}
		return nil
	})
}

func glob(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*.sock"))
	must(t, err)
	return found
}
