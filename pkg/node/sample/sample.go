// Package sample reads every other second how busy the devices of prepared claims are, and serves
// the last seconds as metrics. It holds no lock while it reads a GPU, so a GPU that does not
// answer delays only itself.
package sample

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"

	"github.com/mica-gpu/mica/pkg/node/wake"
)

const (
	// interval is the time between two samples of a device.
	interval = 2 * time.Second
	// window is the time of a mean. A device without a sample in it has no metrics.
	window = 15 * time.Second
	// leaveAfter is how long Run waits at its end for GPUs that do not answer.
	leaveAfter = 5 * time.Second
)

// Meter reads how busy a device is. One goroutine at a time uses it.
type Meter interface {
	// Read may return some values beside an error.
	Read() (gpu.Usage, error)
	Close() error
}

// Device is a device of prepared claims.
type Device struct {
	// Name is unique in the node's pool.
	Name string
	// GPU is the UUID of the physical GPU. UUID is the same, or that of a MIG device of it.
	GPU, UUID string
	// Claims are the UIDs of the claims that have it, at least one.
	Claims []string
}

// Sampler samples devices. It is safe for concurrent use, and a collector of metrics.
type Sampler struct {
	metrics.BaseStableCollector

	// changed holds a token when the devices have changed.
	changed wake.Signal

	mu   sync.Mutex
	gpus map[string]*sampledGPU // by UUID
}

// sampledGPU is a GPU, whose devices are read one after the other. The Sampler's mu guards it.
type sampledGPU struct {
	uuid   string
	series []*series
	// dropped series have meters that are not closed yet.
	dropped []*series
	// reading is when a goroutine began to read, zero if none reads.
	reading time.Time
	// silent: it is logged that the GPU does not answer.
	silent bool
}

// New returns a sampler without devices.
func New() *Sampler {
	return &Sampler{changed: wake.New(), gpus: map[string]*sampledGPU{}}
}

// Set replaces the devices. It never waits for a GPU. A device keeps its samples while one of its
// claims stays.
func (s *Sampler) Set(devices []Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := map[*series]bool{}
	named := map[string]bool{} // two series of one name would fail the scrape
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
	s.changed.Wake()
}

// Utilization is the mean of a device over the window. It is not known if the device does not
// report it, or is not sampled.
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

// Run samples until ctx ends, and sleeps while there is no device. open returns the meter of a
// device by its UUID. Run then waits for pending reads, up to leaveAfter.
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

// awaitDevices returns when there is a device to read, or a meter to close.
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

// due returns the GPUs to read now, and marks them. It leaves out those that have not answered yet.
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
	report := of.failed(err)
	s.mu.Unlock()
	if report {
		klog.FromContext(ctx).Error(err, "Cannot read the usage of a device; retrying", "device", of.Name, "gpu", of.GPU)
	}
}

// finish closes the meters of dropped devices and lets the GPU be read again. It removes a GPU
// without devices.
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
