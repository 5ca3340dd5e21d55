package crash_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/mps"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// devices lists the MIG devices of the machine by UUID, and what is half made.
func (n *node) devices() []string {
	n.Helper()
	state, err := n.gpu.State()
	n.must(err)
	var all []string
	for _, g := range state.GPUs {
		all = append(all, devicesOf(g)...)
	}
	slices.Sort(all)
	return all
}

func devicesOf(g model.GPUState) []string {
	var all []string
	for _, instance := range g.Instances {
		if len(instance.ComputeInstances) != 1 {
			all = append(all, fmt.Sprintf("GPU %d: %s at %d with %d compute instances", g.Index, instance.Profile, instance.Start, len(instance.ComputeInstances)))
			continue
		}
		all = append(all, instance.ComputeInstances[0].UUID)
	}
	return all
}

// records leaves the journal's directory as it is, unlike opening it would.
func (n *node) records() []journal.Record {
	n.Helper()
	files, err := filepath.Glob(filepath.Join(n.state(), "claims", "*.json"))
	n.must(err)
	var records []journal.Record
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		n.must(err)
		record, err := journal.Decode(strings.TrimSuffix(filepath.Base(file), ".json"), content)
		n.must(err)
		records = append(records, record)
	}
	return records
}

// recorded lists the MIG devices that the journal names, and the claims that
// have a record. Those of an intent are listed as such.
func (n *node) recorded() (devices, claims []string) {
	n.Helper()
	for _, record := range n.records() {
		claims = append(claims, record.ClaimUID)
		for _, device := range record.Devices {
			switch {
			case record.State != journal.Prepared:
				devices = append(devices, "of an intent")
			case device.PartUUID != "":
				devices = append(devices, device.PartUUID)
			}
		}
	}
	slices.Sort(devices)
	return slices.Compact(devices), claims
}

// specs lists the claims that have a CDI file, or files for their containers.
func (n *node) specs() []string {
	n.Helper()
	files, err := filepath.Glob(filepath.Join(n.path("cdi"), "mica-*"))
	n.must(err)
	for i, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "mica-"+fixture.Driver+"_"), ".files")
		files[i] = strings.TrimSuffix(name, ".json")
	}
	return slices.Compact(files)
}

// order reports what is not in order: a MIG device that no claim has and that was
// not there before, a claim without its devices, a CDI file without a claim, and
// what is left of how a GPU was shared.
func (n *node) order(foreign []string) error {
	n.Helper()
	want, claims := n.recorded()
	want = append(want, foreign...)
	slices.Sort(want)
	if got := n.devices(); !slices.Equal(got, want) {
		return fmt.Errorf("the machine has the MIG devices %q, and claims have %q", got, want)
	}
	if got := n.specs(); !slices.Equal(got, claims) {
		return fmt.Errorf("CDI files of %q, records of %q", got, claims)
	}
	held := n.held()
	state, err := n.gpu.State()
	if err != nil {
		return err
	}
	for _, g := range state.GPUs {
		if err := n.orderOf(g, held); err != nil {
			return fmt.Errorf("GPU %d: %w", g.Index, err)
		}
	}
	return n.orderOfDaemons(held)
}

// held are the devices of all claims.
func (n *node) held() []journal.Device {
	n.Helper()
	var held []journal.Device
	for _, record := range n.records() {
		held = append(held, record.Devices...)
	}
	return held
}

// stepData is a field in the data of a device's step, if it has the step.
func stepData(device journal.Device, step, field string) (value string, found bool) {
	for _, s := range device.Steps {
		var data map[string]any
		if s.Name == step && json.Unmarshal(s.Data, &data) == nil {
			return fmt.Sprint(data[field]), true
		}
	}
	return "", false
}

// orderOf reports whether a GPU has the modes that its claims need.
func (n *node) orderOf(g model.GPUState, held []journal.Device) error {
	enabled := g.MIGMode == "Enabled"
	timeSlice, mode := "Default", "Default"
	if set := n.modes[g.Index]; set != "" {
		mode = set
	}
	asWhole := false
	for _, device := range held {
		if device.UUID != g.UUID || !device.Form.Entire() {
			continue
		}
		asWhole = true
		if interval, set := stepData(device, "set-time-slice", "interval"); set {
			timeSlice = interval
		}
		if _, served := stepData(device, "run-daemon", "daemon"); served {
			mode = "Exclusive_Process"
		}
	}
	if enabled {
		timeSlice = "N/A"
	}
	switch {
	case enabled != (len(g.Instances) > 0) && (!n.idleMIG[g.Index] || asWhole):
		return fmt.Errorf("MIG is %s with %d instances", g.MIGMode, len(g.Instances))
	case g.Timeslice != timeSlice:
		return fmt.Errorf("the time-slice is %s, want %s", g.Timeslice, timeSlice)
	case g.ComputeMode != mode:
		return fmt.Errorf("the compute mode is %s, want %s", g.ComputeMode, mode)
	}
	return nil
}

// orderOfDaemons reports whether exactly the daemons run that claims have, and whether
// nothing is left of others.
func (n *node) orderOfDaemons(held []journal.Device) error {
	n.Helper()
	want := map[string][]string{}
	for _, device := range held {
		id, served := stepData(device, "run-daemon", "daemon")
		if !served {
			continue
		}
		uuid := device.DeviceUUID()
		if !slices.Contains(want[id], uuid) {
			want[id] = append(want[id], uuid)
		}
	}
	got := map[string][]string{}
	for _, p := range n.tools() {
		switch {
		case p.place == "" || filepath.Base(p.arguments[0]) != "nvidia-cuda-mps-control" || len(p.arguments) < 2:
			if p.server() && want[p.place] != nil {
				continue
			}
			return fmt.Errorf("the process %q is left", p.arguments)
		case got[p.place] != nil:
			return fmt.Errorf("daemon %s runs twice", p.place)
		}
		got[p.place] = p.devices
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		return fmt.Errorf("daemons run for %q, and claims have %q", got, want)
	}
	return n.orderOfFiles(slices.Sorted(maps.Keys(want)))
}

// orderOfFiles reports whether the MPS root has what the daemons need, and nothing else.
func (n *node) orderOfFiles(daemons []string) error {
	n.Helper()
	if n.supervisor == nil {
		return nil
	}
	want := []string{"daemons", "serving.lock", "shm", "status", "supervisor.lock"}
	for _, id := range daemons {
		want = append(want, id, "daemons/"+id+".json", "status/"+id+".json")
		var status mps.Status
		content, err := os.ReadFile(n.path("mps/status/" + id + ".json"))
		if err == nil {
			err = json.Unmarshal(content, &status)
		}
		if err != nil || status.State != mps.Ready {
			return fmt.Errorf("daemon %s is %+v, %w", id, status, err)
		}
	}
	var got []string
	for _, dir := range []string{".", "daemons", "status"} {
		entries, err := os.ReadDir(filepath.Join(n.path("mps"), dir))
		n.must(err)
		for _, entry := range entries {
			if name := filepath.Join(dir, entry.Name()); name != "libraries" { // as the driver's programs find them
				got = append(got, name)
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("the MPS root has %q, want %q", got, want)
	}
	return nil
}

// tool is a running process of one of the driver's programs.
type tool struct {
	pid       int
	arguments []string
	// place and devices are those of a program of MPS.
	place   string
	devices []string
}

func (t tool) server() bool { return filepath.Base(t.arguments[0]) == "nvidia-cuda-mps-server" }

// tools are the running programs of this machine's driver.
func (n *node) tools() []tool {
	n.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	n.must(err)
	var found []tool
	for _, file := range files {
		command, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(command), n.path("root")+"/") {
			continue
		}
		environment, err := os.ReadFile(filepath.Join(filepath.Dir(file), "environ"))
		if err != nil || len(environment) == 0 {
			continue // it has ended
		}
		t := tool{arguments: strings.Split(strings.TrimSuffix(string(command), "\x00"), "\x00")}
		t.pid, err = strconv.Atoi(filepath.Base(filepath.Dir(file)))
		n.must(err)
		for variable := range strings.SplitSeq(string(environment), "\x00") {
			if value, is := strings.CutPrefix(variable, "CUDA_MPS_PIPE_DIRECTORY="+n.path("mps")+"/"); is {
				t.place = strings.TrimSuffix(value, "/pipe")
			}
			if value, is := strings.CutPrefix(variable, "CUDA_VISIBLE_DEVICES="); is {
				t.devices = strings.Split(value, ",")
			}
		}
		found = append(found, t)
	}
	return found
}

// prepared reports whether exactly these claims are.
func (n *node) prepared(claims ...*resourceapi.ResourceClaim) error {
	n.Helper()
	var want []string
	for _, claim := range claims {
		want = append(want, string(claim.UID))
	}
	slices.Sort(want)
	if _, got := n.recorded(); !slices.Equal(got, want) {
		return fmt.Errorf("records of %q, want %q", got, want)
	}
	return nil
}
