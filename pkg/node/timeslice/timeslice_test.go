package timeslice

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/driverroot"
	"github.com/mica-gpu/mica/test/fixture"
)

const uuid = "GPU-1"

// installed is a driver root with this script as nvidia-smi.
func installed(t *testing.T, script string) *Setter {
	t.Helper()
	root := t.TempDir()
	for path, content := range map[string]string{
		"usr/bin/nvidia-smi":          "#!/bin/sh\n" + script,
		"usr/lib64/libnvidia-ml.so.1": "",
	} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return NewSetter(driverroot.NewTools(root, filepath.Join(root, "links")))
}

func TestIntervalsAreSetByTheirNumbers(t *testing.T) {
	for number, interval := range gpu.Intervals {
		asked := filepath.Join(t.TempDir(), "asked")
		if err := installed(t, "echo $* >"+asked).Set(t.Context(), uuid, interval); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(asked)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("compute-policy -i GPU-1 --set-timeslice %d\n", number); string(got) != want {
			t.Errorf("%s: nvidia-smi was asked %q, want %q", interval, got, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		script       string
		interval     gpu.Interval
		notSupported bool
		want         []string
	}{
		"a GPU without time-slices, by exit status": {"echo Unable; exit 3", gpu.ShortInterval, true, []string{"GPU GPU-1", "Short", `printed "Unable"`, "offer its shares with the interval Default"}},
		"a GPU without time-slices, by words":       {"echo 'Failed for GPU 0: Not Supported'", gpu.LongInterval, true, []string{"Long", "Not Supported"}},
		"no permission":                             {"echo one; echo 'Insufficient Permissions' >&2; exit 4", gpu.ShortInterval, false, []string{"exit status 4", `it printed "Insufficient Permissions"`}},
		"an unknown interval":                       {"exit 0", "Brief", false, []string{"Brief", "no such interval", "Short"}},
		"silence":                                   {"exit 9", gpu.ShortInterval, false, []string{`it printed "nothing"`}},
	} {
		t.Run(name, func(t *testing.T) {
			err := installed(t, tc.script).Set(t.Context(), uuid, tc.interval)
			fixture.Sentence(t, err, tc.want...)
			if errors.Is(err, errNotSupported) != tc.notSupported || errors.Is(err, errors.ErrUnsupported) != tc.notSupported {
				t.Errorf("not supported is %v: %v", !tc.notSupported, err)
			}
		})
	}
}

func TestADriverWithoutNvidiaSMI(t *testing.T) {
	err := NewSetter(driverroot.NewTools(t.TempDir(), t.TempDir())).Set(t.Context(), uuid, gpu.ShortInterval)
	fixture.Sentence(t, err, "nvidia-smi is in none of the program directories", "install the part of the NVIDIA driver that has it")
	if !errors.Is(err, driverroot.ErrMissing) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestAnNvidiaSMIThatHangsIsKilledWithItsChildren(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := installed(t, "sleep 60 & sleep 60").Set(ctx, uuid, gpu.ShortInterval)
	fixture.Sentence(t, err, "did not end in time", context.DeadlineExceeded.Error())
	if elapsed := time.Since(start); elapsed > 10*time.Second {
		t.Errorf("it took %v", elapsed)
	}
}

func TestEndlessOutputIsCutOff(t *testing.T) {
	err := installed(t, "yes word | head -c 1000000; echo; exit 1").Set(t.Context(), uuid, gpu.ShortInterval)
	fixture.Sentence(t, err, "exit status 1")
	if len(err.Error()) > 1000 || strings.Count(err.Error(), "\n") > 0 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}
