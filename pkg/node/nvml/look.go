package nvml

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// sight is the result of the last look at a GPU: the facts that change while its driver is loaded.
type sight struct {
	mode gpu.MIGMode
	// room is how many more instances of the smallest profile fit on the GPU.
	room      int
	instances []gpu.Instance
	// listed are the handles of the instances by the ID of their profile.
	listed map[int][]nvml.GpuInstance
	// settled: no instance was being created or destroyed during the look.
	settled bool
	links   links
	fabric  gpu.FabricState
	// turn counts the looks, because each asks another question of the second kind.
	turn int
}

// question checks whether a part of a sight is unchanged.
type question func() (same bool, err error)

// Refresh reads what changes of GPUs while the driver is loaded: MIG mode, instances and NVLinks. For
// an unchanged GPU it asks two questions. The answer to the first changes with every change of MIG but
// the exchange of an instance for one of the same size. The second is one of the rest, in turn. So it
// can be called every few seconds. Exchanges by this Library are seen at once; otherwise the caller
// would mistake the old MIG device for a foreign one.
// It returns a GPU that cannot be read unchanged, with an error: ErrGPULost if one is lost, ErrSilent
// if one does not answer, and ErrGPUsChanged if the number of GPUs changed, which Discover reads.
func (l *Library) Refresh(gpus []gpu.GPU) ([]gpu.GPU, error) {
	in, leave, err := l.sessions.enter()
	if err != nil {
		return gpus, err
	}
	defer leave()
	failures := []error{in.recount()}
	refreshed := slices.Clone(gpus)
	for i, g := range gpus {
		brief := i == 0 && in.countsNext()
		seen, err := bounded(&l.sessions, lookAt(g.Index), func() (gpu.GPU, error) {
			d, err := in.device(g.UUID)
			if err == nil {
				err = in.judge(d, d.look(&g, brief))
			}
			return g, err
		})
		if err != nil {
			failures = append(failures, err)
			continue
		}
		refreshed[i] = seen
	}
	return in.group(refreshed), errors.Join(failures...)
}

// lookAt names a look at a GPU, by Refresh or Discover.
func lookAt(index int) string { return fmt.Sprintf("look at GPU %d", index) }

// discover reads what a GPU can be partitioned into, and its instances.
func (d *device) discover(g *gpu.GPU) error {
	d.looking.Lock()
	defer d.looking.Unlock()
	d.sight = nil
	var err error
	if g.MIG, err = d.migMode(); err != nil {
		return err
	}
	if err := d.readBoard(g); err != nil {
		return err
	}
	return d.see(g)
}

// look updates a GPU. A brief look asks only the first question.
func (d *device) look(g *gpu.GPU, brief bool) error {
	d.looking.Lock()
	defer d.looking.Unlock()
	if d.remade.Swap(false) && d.sight != nil {
		d.sight.settled = false
	}
	if same, err := d.unchanged(brief); err != nil {
		return err
	} else if same {
		d.sight.show(g)
		return nil
	}
	var err error
	if g.MIG, err = d.migMode(); err != nil {
		return err
	}
	if len(g.Profiles) == 0 && g.MIG == gpu.MIGEnabled {
		if g.Profiles, err = d.readProfiles(g.MemoryBytes); err != nil {
			return err
		}
	}
	return d.see(g)
}

// show copies a sight into a GPU.
func (s *sight) show(g *gpu.GPU) {
	g.MIG, g.Fabric = s.mode, s.fabric
	g.Instances = slices.Clone(s.instances)
}

// unchanged reports whether the sight is still valid.
func (d *device) unchanged(brief bool) (bool, error) {
	if d.sight == nil || !d.sight.settled {
		return false, nil
	}
	if same, err := d.stays(); err != nil || !same || brief {
		return same, err
	}
	if d.sight.fabric != gpu.FabricReady {
		return d.fabricStays()
	}
	questions := d.questions()
	if len(questions) == 0 {
		return true, nil
	}
	d.sight.turn++
	return questions[d.sight.turn%len(questions)]()
}

// stays asks the first question, which also finds a lost GPU.
func (d *device) stays() (bool, error) {
	switch d.sight.mode {
	case gpu.MIGUnsupported:
		// The driver asks the GPU for this, instead of answering from memory.
		if _, ret := d.GetMemoryInfo(); ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
			return false, check(ret, "look whether there is an answer", d.uuid)
		}
		return true, nil
	case gpu.MIGDisabled:
		mode, err := d.migMode()
		return mode == d.sight.mode, err
	}
	// First, so that the next look sees what is created meanwhile.
	room, ret := d.room()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return false, nil
	}
	return room == d.sight.room, check(ret, "count the room for GPU instances", d.uuid)
}

// room is how many more instances of the smallest profile fit. It changes with every instance that is
// created or destroyed.
func (d *device) room() (int, nvml.Return) {
	profiles, err := d.listProfiles()
	if err != nil || len(profiles) == 0 {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	smallest := slices.MinFunc(profiles, func(a, b listedProfile) int {
		if a.info.MemorySizeMB != b.info.MemorySizeMB {
			return int(a.info.MemorySizeMB) - int(b.info.MemorySizeMB)
		}
		return a.number - b.number // the plain one has the fewest engines
	})
	return d.GetGpuInstanceRemainingCapacity(&smallest.info)
}

// questions lists the questions of the second kind.
func (d *device) questions() []question {
	var all []question
	for _, id := range slices.Sorted(maps.Keys(d.sight.listed)) {
		before := d.sight.listed[id]
		all = append(all, func() (bool, error) {
			now, ret := d.list(id)
			return slices.Equal(now, before), check(ret, "list the GPU instances", d.uuid)
		})
	}
	for _, instance := range d.sight.instances {
		for _, device := range instance.Devices {
			all = append(all, func() (bool, error) {
				mig, known := d.mig(device.UUID)
				if !known {
					return false, nil
				}
				return d.confirm(mig)
			})
		}
	}
	for number, before := range d.sight.links.states {
		all = append(all, func() (bool, error) {
			now, _, err := d.linkState(number)
			return now == before, err
		})
	}
	if len(d.sight.links.states) > 0 {
		all = append(all, d.fabricStays)
	}
	return all
}

func (d *device) fabricStays() (bool, error) {
	state, err := d.readFabric()
	return state == d.sight.fabric, err
}

// see reads the GPU, whose MIG mode was just read, and stores the sight.
func (d *device) see(g *gpu.GPU) error {
	before := d.sight
	d.sight = nil
	now := &sight{mode: g.MIG}
	var err error
	if now.mode == gpu.MIGEnabled {
		// First, so that the next look sees what is created meanwhile.
		room, ret := d.room()
		if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
			return check(ret, "count the room for GPU instances", d.uuid)
		}
		now.room = room
		if now.instances, now.listed, err = d.readInstances(); err != nil {
			return err
		}
	}
	if now.links, err = d.readLinks(); err != nil {
		return err
	}
	if len(now.links.states) > 0 {
		if now.fabric, err = d.readFabric(); err != nil {
			return err
		}
	}
	now.settled = d.complete(now.instances) || before != nil && reflect.DeepEqual(now.instances, before.instances)
	if before != nil {
		now.turn = before.turn
	}
	d.keepLinks(now, before)
	d.sight = now
	now.show(g)
	return nil
}

// complete reports whether each instance has as many devices as fit.
func (d *device) complete(instances []gpu.Instance) bool {
	return !slices.ContainsFunc(instances, func(instance gpu.Instance) bool {
		return slicesIn(instance.Devices) != d.slicesOf(instance.ProfileID)
	})
}

// ErrGPUsChanged means that there are more GPUs, or fewer, than were discovered.
var ErrGPUsChanged = errors.New("the GPUs have changed")

// countsNext reports whether the next look counts the GPUs, as every second one does, instead of
// asking one of them the second question.
func (s *session) countsNext() bool { return s.census.looks%2 == 0 }

// recount counts the GPUs at every second look.
func (s *session) recount() error {
	s.census.looks++
	if !s.countsNext() {
		return nil
	}
	count, ret := s.api.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return check(ret, "count the GPUs", "")
	}
	s.census.mu.Lock()
	defer s.census.mu.Unlock()
	if s.census.gpus == count || s.census.gpus == 0 {
		return nil
	}
	return fmt.Errorf("%w: the NVIDIA driver has %d, and had %d", ErrGPUsChanged, count, s.census.gpus)
}
