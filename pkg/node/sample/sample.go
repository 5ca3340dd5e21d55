// Package sample reads how busy the GPUs and MIG partitions of a node are: every other second those of
// prepared claims, the others less often. It serves the last seconds as metrics. It holds no lock while
// it reads a GPU, so a GPU that does not answer delays only itself.
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
	// interval is the time between two samples of what claims have, idleInterval of anything else.
	interval     = 2 * time.Second
	idleInterval = 30 * time.Second
	// senseInterval is the time between two readings of the sensors of a GPU that claims have, also in
	// part.
	senseInterval = 10 * time.Second
	// window is the time of a mean. A device of claims without a sample in it has no metrics.
	window = 15 * time.Second
	// unitAge is the age of a sample at which a GPU or GPU instance has no metrics any more.
	unitAge = idleInterval + window
	// leaveAfter is how long Run waits at its end for GPUs that do not answer.
	leaveAfter = 5 * time.Second
)

// Meter reads a GPU or MIG device. One goroutine at a time uses it.
type Meter interface {
	// Read returns how busy it is, possibly some values beside an error.
	Read() (gpu.Usage, error)
	// Sense reads a GPU's sensors, possibly some beside an error.
	Sense() (gpu.Sensors, error)
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
	// Pods are those of the claims, as far as they are known and may be named.
	Pods []Pod
}

// Pod is a pod of a claim.
type Pod struct{ Namespace, Name string }

// Hardware is what a Sampler reads. All fields are required.
type Hardware struct {
	// Open returns the meter of a GPU or MIG device by its UUID.
	Open func(uuid string) Meter
	// Units lists the GPUs and GPU instances as they were seen last. It is called before each round.
	Units func() []Unit
	// Idle is called when all GPUs of a round have answered.
	Idle func()
}

// Sampler samples GPUs and MIG devices. It is safe for concurrent use, and a collector of metrics.
type Sampler struct {
	metrics.BaseStableCollector

	mu   sync.Mutex
	gpus map[string]*sampledGPU // by UUID
}

// sampledGPU is a GPU, whose series are read one after the other. The Sampler's mu guards it.
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
func New() *Sampler { return &Sampler{gpus: map[string]*sampledGPU{}} }

// Set replaces the devices of claims. It never waits for a GPU. A device keeps its samples while one
// of its claims stays.
func (s *Sampler) Set(devices []Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	held := map[*holding]bool{}
	named := map[string]bool{} // two series of one name would fail the scrape
	for _, device := range devices {
		if !named[device.Name] {
			named[device.Name] = true
			held[s.at(device.GPU, device.UUID).hold(device, now)] = true
		}
	}
	for _, b := range s.gpus {
		for _, of := range b.series {
			of.keep(held, now)
		}
		b.drop()
	}
}

// see replaces the GPUs and GPU instances.
func (s *Sampler) see(units []Unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[*series]bool{}
	for _, unit := range units {
		of := s.at(unit.GPU, unit.UUID)
		of.unit, seen[of] = &unit, true
	}
	for _, b := range s.gpus {
		for _, of := range b.series {
			if !seen[of] {
				of.unit = nil
			}
		}
		b.drop()
	}
}

// at returns the series of a GPU or MIG device, which may be new.
func (s *Sampler) at(board, uuid string) *series {
	b := s.gpus[board]
	if b == nil {
		b = &sampledGPU{uuid: board}
		s.gpus[board] = b
	}
	i := slices.IndexFunc(b.series, func(of *series) bool { return of.uuid == uuid })
	if i < 0 {
		i = len(b.series)
		b.series = append(b.series, &series{gpu: board, uuid: uuid})
	}
	return b.series[i]
}

// drop drops the series that are neither seen nor held.
func (b *sampledGPU) drop() {
	b.series = slices.DeleteFunc(b.series, func(of *series) bool {
		unused := of.unit == nil && len(of.held) == 0
		if unused {
			b.dropped = append(b.dropped, of)
		}
		return unused
	})
}

// Utilization is the mean of a device of claims over the window. It is not known if the device does
// not report it, or is not sampled.
func (s *Sampler) Utilization(device string) (ratio float64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.gpus {
		for _, of := range b.series {
			for _, h := range of.held {
				if h.Name != device {
					continue
				}
				if usage, at := of.recent(h.since); usage.Utilization != nil && time.Since(at) <= window {
					return *usage.Utilization, true
				}
			}
		}
	}
	return 0, false
}

// Run samples until ctx ends. It then waits for pending reads, up to leaveAfter.
func (s *Sampler) Run(ctx context.Context, hardware Hardware) error {
	var readers sync.WaitGroup
	defer awaitReaders(ctx, &readers)
	for {
		s.see(hardware.Units())
		for _, t := range s.due(ctx) {
			readers.Go(func() { s.read(ctx, t, hardware) })
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

// turn is what is to be read of a GPU now.
type turn struct {
	of     *sampledGPU
	series []dueSeries
}

type dueSeries struct {
	*series
	// renew: the meter is opened anew. sense: the sensors are due too.
	renew, sense bool
}

// due returns the GPUs with something to read or to close now, and marks them. It leaves out
// those that have not answered yet.
func (s *Sampler) due(ctx context.Context) []turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	var due []turn
	now := time.Now()
	for _, b := range s.gpus {
		if !b.reading.IsZero() {
			if waited := now.Sub(b.reading); waited >= window && !b.silent {
				b.silent = true
				klog.FromContext(ctx).Info("GPU does not answer requests for its usage; its devices have no metrics until it does", "gpu", b.uuid, "waited", waited)
			}
			continue
		}
		if next := b.due(now); len(next) > 0 || len(b.dropped) > 0 || len(b.series) == 0 {
			b.reading = now
			due = append(due, turn{b, next})
		}
	}
	return due
}

// due returns the series to read now, and marks them.
func (b *sampledGPU) due(now time.Time) []dueSeries {
	rest := idleInterval
	if slices.ContainsFunc(b.series, func(of *series) bool { return len(of.held) > 0 }) {
		rest = senseInterval
	}
	// Rounds come a little late.
	over := func(last time.Time, pause time.Duration) bool { return now.Sub(last) >= pause-interval/2 }
	var due []dueSeries
	for _, of := range b.series {
		next := dueSeries{series: of, renew: of.renewed, sense: of.entire() && over(of.sensed, rest)}
		pause := idleInterval
		if len(of.held) > 0 {
			pause = interval
		}
		if !next.sense && !next.renew && !over(of.begun, pause) {
			continue
		}
		of.begun, of.renewed = now, false
		if next.sense {
			of.sensed = now
		}
		due = append(due, next)
	}
	return due
}

// read reads what is due of a GPU.
func (s *Sampler) read(ctx context.Context, t turn, hardware Hardware) {
	for _, of := range t.series {
		if of.renew {
			of.close(ctx)
		}
		if of.meter == nil {
			of.meter = hardware.Open(of.uuid)
		}
		at := time.Now()
		usage, err := of.meter.Read()
		s.record(ctx, of.series, err, &of.unread, func() { of.add(usage, at) })
		if of.sense {
			sensors, err := of.meter.Sense()
			s.record(ctx, of.series, err, &of.unsensed, func() { of.sensors = sensors })
		}
	}
	if s.finish(ctx, t.of) {
		hardware.Idle()
	}
}

// record keeps what was read, and logs an error once while it lasts.
func (s *Sampler) record(ctx context.Context, of *series, err error, last *reported, keep func()) {
	s.mu.Lock()
	keep()
	report, held := last.failed(err), of.names()
	s.mu.Unlock()
	switch logger := klog.FromContext(ctx); {
	case report && (of.entire() || len(held) > 0):
		logger.Error(err, "Cannot read the usage of a device; retrying", "devices", held, "uuid", of.uuid, "gpu", of.gpu)
	case report: // a partition that was destroyed after the last look
		logger.V(2).Info("Cannot read the usage of a MIG device that no claim has", "uuid", of.uuid, "gpu", of.gpu, "reason", err.Error())
	}
}

// finish closes the meters of dropped series and lets the GPU be read again. It removes a GPU without
// series. It reports whether no GPU is being read any more.
func (s *Sampler) finish(ctx context.Context, b *sampledGPU) (idle bool) {
	for {
		s.mu.Lock()
		dropped := b.dropped
		b.dropped = nil
		if len(dropped) == 0 {
			b.reading, b.silent = time.Time{}, false
			if len(b.series) == 0 {
				delete(s.gpus, b.uuid)
			}
			idle = true
			for _, other := range s.gpus {
				idle = idle && other.reading.IsZero()
			}
			s.mu.Unlock()
			return idle
		}
		s.mu.Unlock()
		for _, of := range dropped {
			of.close(ctx)
		}
	}
}

// close closes the meter, if there is one.
func (s *series) close(ctx context.Context) {
	if s.meter == nil {
		return
	}
	if err := s.meter.Close(); err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot close the meter of a device", "device", s.uuid, "err", err)
	}
	s.meter = nil
}
