package prepare

import (
	"fmt"
	"slices"

	"github.com/mica-gpu/mica/pkg/node/journal"
)

// work is what a record with effects speaks of: what is done to GPUs, and the daemons
// that serve them then.
type work struct{ gpus, daemons []*job }

// leaves tells whether something may be left of a step. Of one that is unknown, it may.
func leaves(s journal.Step) bool { return !steps[s].nothing }

func every(journal.Step) bool { return true }

// workOf makes the steps of a record that are wanted. One that is unknown was recorded by
// a newer build, which alone can undo it.
func workOf(record *journal.Record, others neighbours, wanted func(journal.Step) bool) (work, error) {
	var w work
	for i, device := range record.Devices {
		for _, name := range device.Steps {
			s, known := steps[name]
			if !known {
				return work{}, fmt.Errorf("request %q: %s was prepared with the step %q, which this version of the plugin does not know: install the version again that prepared it", device.Request, device.Device, name)
			}
			if wanted(name) {
				s.add(&w, record, i, others)
			}
		}
	}
	return w, nil
}

// of is the job on a GPU.
func (w *work) of(uuid string) *job {
	if i := slices.IndexFunc(w.gpus, func(j *job) bool { return j.gpu == uuid }); i >= 0 {
		return w.gpus[i]
	}
	w.gpus = append(w.gpus, &job{gpu: uuid})
	return w.gpus[len(w.gpus)-1]
}

func (w *work) addDisable(record *journal.Record, i int, _ neighbours) {
	device := &record.Devices[i]
	w.of(device.UUID).add(device.Request, disableMIG{device.UUID})
}

func (w *work) addInterval(record *journal.Record, i int, others neighbours) {
	device := &record.Devices[i]
	w.of(device.UUID).add(device.Request, setInterval{device, others})
}

func (w *work) addMode(record *journal.Record, i int, others neighbours) {
	device := &record.Devices[i]
	w.of(device.UUID).add(device.Request, setMode{device, others})
}

func (w *work) addPartition(record *journal.Record, i int, others neighbours) {
	device := &record.Devices[i]
	j := w.of(device.UUID)
	if first := slices.IndexFunc(record.Devices[:i], func(d journal.Device) bool { return sharesWith(d, *device) }); first >= 0 {
		j.add(device.Request, adopt{&record.Devices[first], device})
		return
	}
	if len(j.steps) == 0 {
		j.add(device.Request, enableMIG{device.UUID, others})
	}
	j.add(device.Request, &makePartition{device: device, others: others})
}

// addClient adds the device to those of its daemon.
func (w *work) addClient(record *journal.Record, i int, others neighbours) {
	device := &record.Devices[i]
	for _, j := range w.daemons {
		if daemon, ok := j.steps[0].(*runDaemon); ok && daemon.devices[0].MPS.Daemon == device.MPS.Daemon {
			daemon.devices = append(daemon.devices, device)
			return
		}
	}
	j := &job{gpu: device.UUID}
	j.add(device.Request, &runDaemon{devices: []*journal.Device{device}, others: others})
	w.daemons = append(w.daemons, j)
}
