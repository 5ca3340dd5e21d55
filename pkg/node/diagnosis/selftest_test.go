package diagnosis

import (
	"errors"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// finding is the result of a check.
func finding(r *Report, name string) (Status, string) {
	for _, check := range r.Checks {
		if check.Name == name {
			return check.Status, strings.Join(check.Findings, "; ")
		}
	}
	return "", ""
}

func expect(t *testing.T, report *Report, name string, want Status, words ...string) {
	t.Helper()
	status, text := finding(report, name)
	if status != want {
		t.Errorf("%s is %q, want %q: %s", name, status, want, text)
	}
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%s says %q, without %q", name, text, word)
		}
	}
}

func TestReportsOfSimulatedNodes(t *testing.T) {
	for _, machine := range []string{"p5.48xlarge", "mig-static", "pascal"} {
		t.Run(machine, func(t *testing.T) {
			r := newRig(t, machine)
			report := r.look(t)
			var text strings.Builder
			must(t, printText(&text, report))
			fixture.Golden(t, machine+".txt", strings.ReplaceAll(text.String(), r.dir, "DIRECTORY"))
		})
	}
}

// Programs read it.
func TestReportAsYAML(t *testing.T) {
	r := newRig(t, "g5.12xlarge")
	content, err := yaml.Marshal(r.look(t))
	must(t, err)
	fixture.Golden(t, "g5.12xlarge.yaml", strings.ReplaceAll(string(content), r.dir, "DIRECTORY"))
}

func TestFaultsThatAreSeen(t *testing.T) {
	for name, tc := range map[string]struct {
		breaks func(t *testing.T, r *rig)
		check  string
		status Status
		want   []string
	}{
		"no driver": {
			func(_ *testing.T, r *rig) {
				r.options.Open = func() (Hardware, error) { return Hardware{}, errors.New("no usable NVML library: install it") }
			}, "driver", Failed, []string{"no usable NVML library"},
		},
		"a lost GPU": {
			func(t *testing.T, r *rig) {
				must(t, r.machine.Lose(1))
			}, "GPUs", Failed, []string{"a GPU cannot be read", "GPU 1: NVML answered ERROR_GPU_IS_LOST"},
		},
		"another user": {
			func(_ *testing.T, r *rig) { r.options.Privileges.User = 1000 },
			"privileges", Failed, []string{"user 1000", "run it as root"},
		},
		"no privileges": {
			func(_ *testing.T, r *rig) { r.options.Privileges.SysAdmin = false },
			"privileges", Warning, []string{"SYS_ADMIN"},
		},
		"no directory": {
			func(_ *testing.T, r *rig) { r.options.Directories = []string{r.dir + "/none"} },
			"directories", Warning, []string{"/none does not exist"},
		},
		"a directory that cannot be written": {
			func(t *testing.T, r *rig) {
				must(t, os.WriteFile(r.dir+"/file", nil, 0o600))
				r.options.Directories = []string{r.dir + "/file/below"}
			}, "directories", Failed, []string{"cannot be written"},
		},
		"no node of UVM": {
			func(_ *testing.T, r *rig) { r.edits.nodes = r.edits.nodes[:1] },
			"device nodes", Failed, []string{"/dev/nvidia-uvm is missing", "nvidia-modprobe"},
		},
		"no driver files": {
			func(_ *testing.T, r *rig) { r.edits.err = errors.New("find the NVIDIA driver's files") },
			"CDI", Failed, []string{"find the NVIDIA driver's files"},
		},
		"no hook": {
			func(_ *testing.T, r *rig) { r.options.Hook = r.dir + "/hook" },
			"CDI", Failed, []string{"/hook cannot be run", "wait for the plugin"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "g5.12xlarge")
			tc.breaks(t, r)
			expect(t, r.look(t), tc.check, tc.status, tc.want...)
		})
	}
}

// A partition that a claim removes during the test is no fault.
func TestPartitionsThatAreRemovedMeanwhile(t *testing.T) {
	for name, goes := range map[string]bool{"one that stays": false, "one that goes": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "p5.48xlarge")
			must(t, r.machine.SetMIGMode(2, true))
			instance, err := r.machine.CreateInstance(2, "1g.10gb", nil)
			must(t, err)
			r.edits.partition = func() error {
				if goes {
					if err := r.machine.DestroyInstance(2, instance.ID); err != nil {
						t.Error(err)
					}
				}
				return errors.New("open gi3/access: file does not exist")
			}
			if goes {
				expect(t, r.look(t), "CDI", OK, "existing partitions: 0")
			} else {
				expect(t, r.look(t), "CDI", Failed, "gi3/access")
			}
		})
	}
}

// other is a node with an unknown board.
type other struct {
	*nvml.Library

	change func(*gpu.GPU)
}

// Discover implements GPUs.
func (o other) Discover() (gpu.Node, []error, error) {
	node, unreadable, err := o.Library.Discover()
	o.change(&node.GPUs[0])
	return node, unreadable, err
}

func TestBoardsThatAreNotAsPredicted(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*gpu.GPU)
		want   string
	}{
		"unknown":       {func(g *gpu.GPU) { g.ProductName = "NVIDIA Z100" }, "GPU 0, a NVIDIA Z100, is not in the catalogue"},
		"other numbers": {func(g *gpu.GPU) { g.Profiles[0].Multiprocessors++ }, "multiprocessors"},
	} {
		r := newRig(t, "p5.48xlarge")
		r.options.Open = func() (Hardware, error) { return Hardware{GPUs: other{r.library, tc.change}, Edits: &r.edits}, nil }
		t.Run(name, func(t *testing.T) { expect(t, r.look(t), "catalogue", Warning, tc.want) })
	}
}

// deaf is a driver with other answers about the health of a GPU.
type deaf struct {
	*nvml.Library

	index  int
	fields []nvml.FieldAnswer
	err    error
	asked  *int
}

// HealthFields implements GPUs.
func (d deaf) HealthFields(uuid string) ([]nvml.FieldAnswer, error) {
	if *d.asked++; *d.asked-1 != d.index {
		return d.Library.HealthFields(uuid)
	}
	return d.fields, d.err
}

func TestHealthThatIsNotAnswered(t *testing.T) {
	odd := errors.New("NVML answered with a value of the unknown type 9")
	for name, tc := range map[string]struct {
		fields []nvml.FieldAnswer
		err    error
		status Status
		want   []string
	}{
		"not supported": {[]nvml.FieldAnswer{{Field: "recovery action", Err: nvml.ErrNotSupported}}, nil, OK, []string{"answers, by GPUs: 7 recovery action", "does not know, by GPUs: 1 recovery action"}},
		"another type":  {[]nvml.FieldAnswer{{Field: "recovery action", Err: odd}}, nil, Warning, []string{"answers, by GPUs: 7 recovery action", "GPU 1: NVML answered with a value of the unknown type 9"}},
		"no answer":     {nil, nvml.ErrGPULost, Failed, []string{"GPU 1: GPU is lost"}},
	} {
		r := newRig(t, "p5.48xlarge")
		r.options.Open = func() (Hardware, error) {
			return Hardware{GPUs: deaf{r.library, 1, tc.fields, tc.err, new(int)}, Edits: &r.edits}, nil
		}
		t.Run(name, func(t *testing.T) { expect(t, r.look(t), "health", tc.status, tc.want...) })
	}
}

func TestAFabricThatIsNotReady(t *testing.T) {
	r := newRig(t, "p5.48xlarge")
	must(t, r.machine.SetFabric(model.FabricInProgress))
	expect(t, r.look(t), "fabric", Failed, "GPU 0 waits for the fabric manager (InProgress)", "nvidia-fabricmanager")
}

func TestAMutationIsUndone(t *testing.T) {
	r := newRig(t, "p5.48xlarge")
	r.options.Claims = r.preparer(t)
	report := r.look(t)
	for _, name := range []string{"partition", "time-slice", "MPS"} {
		expect(t, report, name, OK, "was prepared in", "and unprepared in")
	}
	if _, text := finding(report, "partition"); !strings.HasPrefix(text, "gpu-0-mig-1g10gb") {
		t.Errorf("the partition was %q", text)
	}
	if len(r.set.last) == 0 || r.set.last[0] != gpu.ShortInterval || r.run.starts != 1 {
		t.Errorf("the time-slices were %v, and %d daemons were started", r.set.last, r.run.starts)
	}
	r.untouched(t)
}

func TestWhatIsNotIdleIsLeftAlone(t *testing.T) {
	const single = "g6.xlarge"
	t.Run("a claim", func(t *testing.T) {
		r := newRig(t, single)
		r.hold(t, "gpu-0")
		r.options.Claims = r.preparer(t)
		expect(t, r.look(t), "idle GPU", Failed, "a claim has GPU 0", "nothing is changed")
		if len(r.set.last)+r.run.starts > 0 {
			t.Error("it was changed all the same")
		}
	})
	t.Run("a process", func(t *testing.T) {
		r := newRig(t, single)
		contexts, err := r.machine.OpenContexts(model.Process{PID: 4711, Name: "job"})
		must(t, err)
		defer contexts.Close()
		r.options.Claims = r.preparer(t)
		expect(t, r.look(t), "idle GPU", Failed, "process 4711 uses GPU 0")
	})
	t.Run("another GPU is idle", func(t *testing.T) {
		r := newRig(t, "p5.48xlarge")
		r.hold(t, "gpu-0")
		r.options.Claims = r.preparer(t)
		expect(t, r.look(t), "partition", OK, "gpu-1-mig-1g10gb")
	})
	t.Run("an administrator's partitions", func(t *testing.T) {
		r := newRig(t, "p5.48xlarge")
		for i := range 8 {
			must(t, r.machine.SetMIGMode(i, true))
			if _, err := r.machine.CreateInstance(i, "1g.10gb", nil); err != nil {
				t.Fatal(err)
			}
		}
		r.options.Claims = r.preparer(t)
		expect(t, r.look(t), "idle GPU", Failed, "GPU 7 has MIG instances that no claim has")
	})
}

func TestAMutationThatFailsIsUndone(t *testing.T) {
	const noPermission = 4 // NVML_ERROR_NO_PERMISSION
	r := newRig(t, "p5.48xlarge")
	must(t, r.machine.Fail(model.Failure{Function: "nvmlGpuInstanceCreateComputeInstance", Return: noPermission}))
	r.set.err = errors.ErrUnsupported
	r.tools.Daemons = nil
	r.options.Claims = r.preparer(t)
	report := r.look(t)
	expect(t, report, "partition", Failed, "create the compute instance")
	expect(t, report, "time-slice", Skipped, "unsupported")
	expect(t, report, "MPS", Skipped, "no MPS supervisor")
	r.untouched(t)
}
