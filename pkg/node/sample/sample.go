// Package sample knows how busy the devices are that prepared claims hold: while there
// are any, it asks for it every other second, and it serves the last seconds as metrics.
// It knows nothing of what claims do with a device, and holds no lock while a GPU is asked,
// so that one that does not answer delays nobody but itself.
package sample

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
)

const (
	// interval is the time between two samples of a device.
	interval = 2 * time.Second
	// window is what a mean is about. A device without a sample in it has no metrics.
	window = 15 * time.Second
	// leaveAfter is how long Run waits for GPUs that do not answer before it returns.
	leaveAfter = 5 * time.Second
)

// Meter reads how busy a device is. It is used by one goroutine at a time.
type Meter interface {
	// Read returns what it can, also beside an error.
	Read() (gpu.Usage, error)
	Close() error
}

// Device is a device that claims hold.
type Device struct {
	// Name is the device's in the node's pool.
	Name string
	// GPU is the UUID of the physical GPU, UUID that of what is read: the same, or a
	// MIG device of it.
	GPU, UUID string
	// Claims are the UIDs of those that hold it, one at least.
	Claims []string
}

// Sampler samples devices. It is safe for concurrent use, and a collector of metrics.
type Sampler struct {
	metrics.BaseStableCollector

	// changed holds a token when the devices have changed.
	changed chan struct{}

	mu   sync.Mutex
	gpus map[string]*sampledGPU // by UUID
}

// sampledGPU is a GPU whose devices are read one after the other. The Sampler's mu guards
// the fields.
type sampledGPU struct {
	uuid   string
	series []*series
	// dropped are those whose meter is to be closed.
	dropped []*series
	// reading is since when a goroutine reads, zero where none does.
	reading time.Time
	// silent tells that it was said that the GPU does not answer.
	silent bool
}

// New returns a sampler of no device.
func New() *Sampler {
	return &Sampler{changed: make(chan struct{}, 1), gpus: map[string]*sampledGPU{}}
}

// Set replaces the devices that are sampled. It never waits for a GPU. What was sampled
// of a device is kept as long as one of those claims still holds it that did.
func (s *Sampler) Set(devices []Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := map[*series]bool{}
	named := map[string]bool{} // a second series of one name would cost all metrics
	for _, device := range devices {
		if named[device.Name] {
			continue
		}
		named[device.Name] = true
		b := s.gpus[device.GPU]
		if b == nil {
			b = &sampledGPU{uuid: device.GPU}
			s.gpus[device.GPU] = b
		}
		i := slices.IndexFunc(b.series, func(of *series) bool { return of.continues(device) })
		if i < 0 {
			i = len(b.series)
			b.series = append(b.series, &series{Device: device})
		}
		b.series[i].Claims = device.Claims
		kept[b.series[i]] = true
	}
	for _, b := range s.gpus {
		for _, of := range b.series {
			if !kept[of] {
				b.dropped = append(b.dropped, of)
			}
		}
		b.series = slices.DeleteFunc(b.series, func(of *series) bool { return !kept[of] })
	}
	select {
	case s.changed <- struct{}{}:
	default: // Run has not yet seen the last one
	}
}

// Utilization is the mean of a device over the last seconds. It is false for one that does not tell, or
// that is not sampled.
func (s *Sampler) Utilization(device string) (ratio float64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.gpus {
		for _, of := range b.series {
			if of.Name != device {
				continue
			}
			if usage, _, _ := of.recent(time.Now()); usage.Utilization != nil {
				return *usage.Utilization, true
			}
		}
	}
	return 0, false
}

// Run samples until ctx ends. While there is no device, it sleeps. open returns the meter
// of a device by its UUID. Run returns later only by the time in which a GPU may answer
// that was asked before.
func (s *Sampler) Run(ctx context.Context, open func(uuid string) Meter) error {
	var readers sync.WaitGroup
	defer awaitReaders(ctx, &readers)
	for {
		if err := s.awaitDevices(ctx); err != nil {
			return err
		}
		for _, b := range s.due(ctx) {
			readers.Go(func() { s.read(ctx, b, open) })
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
	}
}

func awaitReaders(ctx context.Context, readers *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		readers.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(leaveAfter):
		klog.FromContext(ctx).Info("Stopping before a GPU has answered a request for its usage", "waited", leaveAfter)
	}
}

// awaitDevices returns once there is something to read, or a meter to close.
func (s *Sampler) awaitDevices(ctx context.Context) error {
	for {
		s.mu.Lock()
		some := len(s.gpus) > 0
		s.mu.Unlock()
		if some {
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.changed:
		}
	}
}

// due are the GPUs to read now, which are marked as being read: those that have
// answered the last time.
func (s *Sampler) due(ctx context.Context) []*sampledGPU {
	s.mu.Lock()
	defer s.mu.Unlock()
	var due []*sampledGPU
	now := time.Now()
	for _, b := range s.gpus {
		if b.reading.IsZero() {
			b.reading = now
			due = append(due, b)
			continue
		}
		if waited := now.Sub(b.reading); waited >= window && !b.silent {
			b.silent = true
			klog.FromContext(ctx).Info("GPU does not answer requests for its usage; its devices have no metrics until it does", "gpu", b.uuid, "waited", waited)
		}
	}
	return due
}

// read reads the devices of a GPU once.
func (s *Sampler) read(ctx context.Context, b *sampledGPU, open func(uuid string) Meter) {
	s.mu.Lock()
	all := slices.Clone(b.series)
	s.mu.Unlock()
	for _, of := range all {
		if of.meter == nil {
			of.meter = open(of.UUID)
		}
		usage, err := of.meter.Read()
		s.record(ctx, of, usage, err)
	}
	s.finish(ctx, b)
}

func (s *Sampler) record(ctx context.Context, of *series, usage gpu.Usage, err error) {
	s.mu.Lock()
	of.add(usage, time.Now())
	say := of.failed(err)
	s.mu.Unlock()
	if say {
		klog.FromContext(ctx).Error(err, "Cannot read the usage of a device; retrying", "device", of.Name, "gpu", of.GPU)
	}
}

// finish closes the meters of devices that no claim holds any more and lets the GPU be
// read again. A GPU without devices goes.
func (s *Sampler) finish(ctx context.Context, b *sampledGPU) {
	for {
		s.mu.Lock()
		dropped := b.dropped
		b.dropped = nil
		if len(dropped) == 0 {
			b.reading, b.silent = time.Time{}, false
			if len(b.series) == 0 {
				delete(s.gpus, b.uuid)
			}
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		for _, of := range dropped {
			if of.meter == nil {
				continue
			}
			if err := of.meter.Close(); err != nil {
				klog.FromContext(ctx).V(2).Info("Cannot close the meter of a device", "device", of.Name, "err", err)
			}
		}
	}
}
