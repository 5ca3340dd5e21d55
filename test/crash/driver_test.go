package crash_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
)

var driverRoot = flag.String("driver-root", "", "Root of the NVIDIA driver that TestADriver asks, such as /. Empty: a simulated one.")

// survey is what one NVIDIA driver answers, whoever wrote it.
type survey struct {
	*node
	library *nvml.Library
	gpus    []gpu.GPU
}

// TestADriver holds any NVIDIA driver to what the plugin relies on: the simulator by default, else the
// one below -driver-root. What a driver lacks is skipped. It changes a GPU only for a claim, and only
// one without processes and instances.
func TestADriver(t *testing.T) {
	t.Parallel()
	s := &survey{}
	if *driverRoot == "" {
		s.node = newNode(t)
	} else {
		s.node = newHost(t)
		s.driver = *driverRoot
	}
	s.open()
	parent := s.TB
	for _, test := range []struct {
		name string
		run  func()
	}{
		{"boards", s.boards},
		{"looks", s.looks},
		{"modes", s.readsModes},
		{"health", s.health},
		{"use", s.use},
		{"unknown GPUs", s.unknown},
		{"events", s.events},
		{"sessions", s.sessions},
		{"whole GPUs", s.whole},
		{"partition", s.partition},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.TB = t
			defer func() { s.TB = parent }()
			test.run()
		})
	}
}

// open loads the library, and discovers the GPUs.
func (s *survey) open() {
	var err error
	if s.library, err = nvml.Open(s.driver); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { s.must(s.library.Close()) })
	s.gpus = s.discover()
	for _, g := range s.gpus {
		s.Logf("GPU %d: %s, %s, MIG %v with %d profiles", g.Index, g.ProductName, g.UUID, g.MIG, len(g.Profiles))
	}
}

func (s *survey) discover() []gpu.GPU {
	s.Helper()
	node, unreadable, err := s.library.Discover()
	if err := errors.Join(append(unreadable, err)...); err != nil {
		s.Fatal(err)
	}
	if node.DriverVersion == "" || node.CUDAVersion == "" || len(node.GPUs) == 0 {
		s.Fatalf("driver %q, CUDA %q, %d GPUs", node.DriverVersion, node.CUDAVersion, len(node.GPUs))
	}
	return node.GPUs
}

// boards are those of the catalogue, which predicts nodes that do not exist yet.
func (s *survey) boards() {
	known := false
	for _, g := range s.gpus {
		if g.PCIBusID == "" || g.Brand == "" || g.Architecture == "" {
			s.Errorf("GPU %d: no PCI address, brand or architecture: %+v", g.Index, g)
		}
		board, found := catalog.BoardByProductName(g.ProductName)
		if !found {
			continue
		}
		known = true
		if g.Architecture != board.Architecture || g.ComputeCapability != board.ComputeCapability {
			s.Errorf("GPU %d is %s %s, predicted was %s %s", g.Index, g.Architecture, g.ComputeCapability, board.Architecture, board.ComputeCapability)
		}
		for _, difference := range catalog.Differences(g.ProductName, g.Profiles) {
			s.Errorf("GPU %d: %s", g.Index, difference)
		}
	}
	if !known {
		s.Skip("no board of this driver is in the catalogue")
	}
}

// looks at unchanged GPUs find them unchanged, whatever each look asks.
func (s *survey) looks() {
	for range 40 { // a GPU has 18 NVLinks, and each look asks of one or none
		seen, err := s.library.Refresh(s.gpus)
		s.must(err)
		if !reflect.DeepEqual(seen, s.gpus) {
			s.Fatalf("a look sees\n%+v, discovered were\n%+v", seen, s.gpus)
		}
	}
}

func (s *survey) readsModes() {
	for _, g := range s.gpus {
		enabled, err := s.library.MIGEnabled(g.UUID)
		if enabled != (g.MIG == gpu.MIGEnabled) || err != nil {
			s.Errorf("GPU %d: MIG enabled: %t, %v; discovered was %v", g.Index, enabled, err, g.MIG)
		}
		_, persistence := s.library.Persistence(g.UUID)
		_, compute := s.library.ComputeMode(g.UUID)
		_, processes := s.library.Processes(g.UUID)
		if err := errors.Join(persistence, compute, processes); err != nil {
			s.Errorf("GPU %d: %v", g.Index, err)
		}
		if instances, err := s.library.Instances(g.UUID); !reflect.DeepEqual(instances, g.Instances) || err != nil {
			s.Errorf("GPU %d: instances %+v, %v; discovered were %+v", g.Index, instances, err, g.Instances)
		}
	}
}

// health of GPUs that nothing happened to has no fault.
func (s *survey) health() {
	for _, g := range s.gpus {
		answers, err := s.library.HealthFields(g.UUID)
		s.must(err)
		for _, answer := range answers {
			if answer.Err != nil && !errors.Is(answer.Err, nvml.ErrNotSupported) {
				s.Errorf("GPU %d: %v", g.Index, answer.Err)
			}
		}
		level, err := s.library.Health(g.UUID)
		s.must(err)
		record := health.Record{}.Next(health.Facts{Reach: health.Answers, Level: level}, health.Rules{}, time.Now())
		for _, fault := range record.Faults {
			s.Errorf("GPU %d: %s", g.Index, fault.Words)
		}
	}
}

func (s *survey) use() {
	for _, g := range s.gpus {
		meter := s.library.Meter(g.UUID)
		for range 2 {
			usage, err := meter.Read()
			s.must(err)
			if u := usage.Utilization; u != nil && (*u < 0 || *u > 1) {
				s.Errorf("GPU %d: utilization %v", g.Index, *u)
			}
			if m := usage.Memory; m != nil && (m.Used > m.Total || m.Total != g.MemoryBytes) {
				s.Errorf("GPU %d: memory %+v, discovered were %d bytes", g.Index, *m, g.MemoryBytes)
			}
		}
		sensors, err := meter.Sense()
		s.must(err)
		if c := sensors.Temperature; c != nil && *c > 120 {
			s.Errorf("GPU %d: %v degrees Celsius", g.Index, *c)
		}
		if w := sensors.Power; w != nil && *w > 2000 {
			s.Errorf("GPU %d: %v watts", g.Index, *w)
		}
		s.must(meter.Close())
	}
}

func (s *survey) unknown() {
	const nowhere = "00000000-1111-2222-3333-444444444444"
	if _, err := s.library.Health("GPU-" + nowhere); !errors.Is(err, nvml.ErrGPULost) {
		s.Errorf("the health of an unknown GPU: %v", err)
	}
	if _, err := s.library.Meter("MIG-" + nowhere).Read(); !errors.Is(err, nvml.ErrNotFound) {
		s.Errorf("the use of an unknown MIG device: %v", err)
	}
}

// events of GPUs that nothing happens to are waited for, without a busy loop.
func (s *survey) events() {
	const wait = time.Second
	ctx, cancel := context.WithTimeout(s.Context(), wait)
	defer cancel()
	began := time.Now()
	report, err := s.library.NextEvent(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) < wait {
		s.Errorf("got event %+v and %v after %s", report, err, time.Since(began))
	}
}

// sessions end and begin again, and find the same GPUs.
func (s *survey) sessions() {
	resting, err := s.library.Rest()
	if !resting || err != nil {
		s.Errorf("NVML is closed: %t, %v", resting, err)
	}
	s.must(s.library.Closed(func() error { return nil }))
	if again := s.discover(); !reflect.DeepEqual(again, s.gpus) {
		s.Errorf("the next session finds\n%+v, the first found\n%+v", again, s.gpus)
	}
	s.must(s.library.CheckFile())
}

// idle reports whether a claim of this test may have the GPU.
func (s *survey) idle(g gpu.GPU) bool {
	processes, err := s.library.Processes(g.UUID)
	s.must(err)
	return len(processes) == 0 && len(g.Instances) == 0
}

// whole GPUs are prepared, outlive the plugin, and are unprepared.
func (s *survey) whole() {
	var names, nodes []string
	for _, shape := range gpu.Shapes(s.gpus, gpu.ByDefault) {
		if g := shape.Physical(); shape.Form().Base == gpu.BaseWhole && s.idle(g) && g.MIG != gpu.MIGEnabled {
			names, nodes = append(names, shape.Name()), append(nodes, fmt.Sprint("/dev/nvidia", g.Minor))
		}
	}
	if len(names) == 0 {
		s.Skip("all GPUs are in use or partitioned")
	}
	s.claim("whole", names, append(nodes, "/dev/nvidiactl"))
}

// partition is made for a claim and removed with it.
func (s *survey) partition() {
	for _, shape := range gpu.Shapes(s.gpus, gpu.ByDefault) {
		p, is := shape.(gpu.Partition)
		if !is || !s.idle(p.GPU) || !p.GPU.MIGSwitchable && p.GPU.MIG != gpu.MIGEnabled {
			continue
		}
		s.claim("partition", []string{p.Name()}, []string{fmt.Sprint("/dev/nvidia", p.GPU.Minor), "/dev/nvidia-caps/nvidia-cap"})
		if left, err := s.library.Instances(p.GPU.UUID); len(left) > 0 || err != nil {
			s.Errorf("the GPU instances %+v are left, %v", left, err)
		}
		if enabled, err := s.library.MIGEnabled(p.GPU.UUID); enabled != (p.GPU.MIG == gpu.MIGEnabled) || err != nil {
			s.Errorf("MIG is enabled: %t, %v; before it was %v", enabled, err, p.GPU.MIG)
		}
		return
	}
	s.Skip("no GPU of this driver can be partitioned without a reset")
}

// claim prepares devices, restarts the plugin, and unprepares them. The container gets the device
// nodes that begin so.
func (s *survey) claim(name string, devices, nodes []string) {
	s.Helper()
	plugin := s.start()
	claim := s.put(name, devices...)
	s.must(plugin.prepare(s.within(), claim))
	plugin.kill()
	plugin = s.start()
	defer plugin.kill()
	s.must(s.prepared(claim))
	s.must(plugin.prepare(s.within(), claim)) // as kubelet does after a restart
	given := s.deviceNodes(claim)
	for _, node := range nodes {
		if !slices.ContainsFunc(given, func(path string) bool { return strings.HasPrefix(path, node) }) {
			s.Errorf("the container gets %q, which has no %s", given, node)
		}
	}
	s.must(plugin.unprepare(s.within(), claim))
	s.must(s.prepared())
	if left := s.specs(); len(left) > 0 {
		s.Errorf("CDI files of %q are left", left)
	}
}

// deviceNodes lists those of a claim's containers.
func (s *survey) deviceNodes(claim *resourceapi.ResourceClaim) (paths []string) {
	s.Helper()
	directory, err := cdi.NewDirectory(s.path("cdi"), fixture.Driver)
	s.must(err)
	spec, err := directory.Spec(claim.UID)
	s.must(err)
	edits := slices.Clone(spec.ContainerEdits.DeviceNodes)
	for _, device := range spec.Devices {
		edits = append(edits, device.ContainerEdits.DeviceNodes...)
	}
	for _, node := range edits {
		paths = append(paths, node.Path)
	}
	return paths
}
