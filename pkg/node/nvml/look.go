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

// sight is what the last look at a GPU showed of what changes while its driver is loaded.
type sight struct {
	mode gpu.MIGMode
	// room is how many more instances of the smallest profile fit on the GPU.
	room      int
	instances []gpu.Instance
	// listed are the handles of the instances by the ID of their profile.
	listed map[int][]nvml.GpuInstance
	// settled tells that no instance was seen while it was being made or unmade.
	settled bool
	links   links
	fabric  gpu.FabricState
	// turn counts the looks, which ask the questions of the second kind in turn.
	turn int
}

// question asks whether something of a sight is still so.
type question func() (same bool, err error)

// Refresh looks again at GPUs, for what changes while the driver is loaded: the MIG mode, the
// instances, and the NVLinks. Of a GPU that has not changed it asks two questions: one that
// any change of MIG answers otherwise but the exchange of an instance for one of the same
// size, and one of the rest, which it asks in turn. So it can be called every few seconds. An
// exchange that this Library has made is seen at once: who knows only the new MIG device would
// take the old one for somebody else's.
//
// A GPU that cannot be read is returned as it was, and reported in err. That is ErrGPULost
// where one is lost, ErrSilent where one does not answer, and ErrGPUsChanged where there are
// others than before: then Discover tells what there is.
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

// lookAt is what Refresh and Discover do.
func lookAt(index int) string { return fmt.Sprintf("look at GPU %d", index) }

// discover reads everything that can be made of a GPU, and what is made of it.
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

// look sees what has changed of a GPU. A brief one asks only the first question.
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

// show tells a GPU what was seen of it.
func (s *sight) show(g *gpu.GPU) {
	g.MIG, g.Fabric = s.mode, s.fabric
	g.Instances = slices.Clone(s.instances)
}

// unchanged asks whether the sight is as it was.
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

// stays asks the first question, which finds a lost GPU, too.
func (d *device) stays() (bool, error) {
	switch d.sight.mode {
	case gpu.MIGUnsupported:
		// Unlike what NVML remembers of a GPU, this is asked of the GPU.
		if _, ret := d.GetMemoryInfo(); ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
			return false, check(ret, "look whether there is an answer", d.uuid)
		}
		return true, nil
	case gpu.MIGDisabled:
		mode, err := d.migMode()
		return mode == d.sight.mode, err
	}
	room, ret := d.room()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return false, nil
	}
	return room == d.sight.room, check(ret, "count the room for GPU instances", d.uuid)
}

// room is how many more instances of the smallest profile fit, of which nothing can be made or
// unmade without that it changes.
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

// questions are those of the second kind.
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

// see reads the GPU, whose mode of MIG was just read, and remembers what it saw.
func (d *device) see(g *gpu.GPU) error {
	before := d.sight
	d.sight = nil
	now := &sight{mode: g.MIG}
	var err error
	if now.mode == gpu.MIGEnabled {
		// First, so that what is made meanwhile is seen by the next look.
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

// complete tells whether each instance has as many devices as fit.
func (d *device) complete(instances []gpu.Instance) bool {
	return !slices.ContainsFunc(instances, func(instance gpu.Instance) bool {
		return slicesIn(instance.Devices) != d.slicesOf(instance.ProfileID)
	})
}

// ErrGPUsChanged means that there are more GPUs, or fewer, than were discovered.
var ErrGPUsChanged = errors.New("the GPUs have changed")

// countsNext tells whether the next look is one of every second that count the GPUs, in place
// of the second question to one of them.
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
