// Package monitor watches the health of a node's GPUs: it receives the driver's events, polls each
// GPU, and keeps the verdicts of pkg/health over restarts. It never changes a GPU and never taints a
// device.
package monitor

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/wake"
)

const (
	// askInterval is how long a fault without an event may go unnoticed.
	askInterval = time.Minute
	// patience is how long a round waits for answers: longer than the 10 seconds after which pkg/node/nvml
	// returns ErrSilent.
	patience = 15 * time.Second
	// lateInterval is the time between polls of a GPU that has not answered, and of all others, which show
	// whether the driver answers at all.
	lateInterval = 10 * time.Second
	// apartTime is how long a GPU may be unreadable while others are read. A missing GPU is looked for
	// within a minute.
	apartTime = 2 * time.Minute
	// stallTime is how long the driver may not answer about any GPU. One GPU whose system processor hangs
	// holds the driver's lock for 45 seconds, up to three times in a row (XID 119).
	stallTime = 5 * time.Minute
	// roundPause bounds how often events cause polls.
	roundPause = 500 * time.Millisecond
	// changedPause bounds how often Changed is called, because it makes the plugin write slices.
	changedPause = 2500 * time.Millisecond
	// maxPending bounds the events of a GPU between two rounds; the first ones have the cause.
	maxPending = 64
	// attempts is how often polls of a GPU may fail before it counts as lost.
	attempts = 3
)

// listenAgain are the pauses after the driver refused events.
var listenAgain = wait.Backoff{Duration: time.Second, Factor: 2, Cap: time.Minute, Steps: math.MaxInt}

// GPUs polls the GPUs of an open NVIDIA driver.
type GPUs interface {
	// Health polls a GPU. It returns nvml.ErrGPULost or nvml.ErrSilent if the GPU is lost or does not
	// answer.
	Health(uuid string) (health.Level, error)
	// NextEvent waits for an event of any GPU.
	NextEvent(ctx context.Context) (nvml.Report, error)
}

// Change is a change of a GPU's health.
type Change struct {
	UUID string
	// Faults are new, or have become worse. Notes are new.
	Faults []health.Fault
	Notes  []health.Note
	// Over are faults that have ended.
	Over []health.Fault
}

// Options configure a Monitor. All fields are required.
type Options struct {
	// File has the state of this node's plugins.
	File string
	// BootID changes with each boot of the kernel.
	BootID string
	// Quiet is how long the cause of a fault must be absent before the fault is over.
	Quiet time.Duration
	// Changed is called after faults have begun or ended.
	Changed func()
	// Asked is called after a round, which opened the driver if it was closed.
	Asked func()
	// Repair is called after each round. No GPU is polled until it returns.
	Repair func(ctx context.Context)
	// Notify reports a change to users.
	Notify func(ctx context.Context, change Change)
	// Stalled is called once if the driver does not answer about any of several GPUs. After lasts they
	// count as unresponsive.
	Stalled func(ctx context.Context, lasts time.Duration)
}

// Monitor keeps the health of a node's GPUs. New has no effects; Run has.
type Monitor struct {
	Options
	wake wake.Signal

	mu   sync.Mutex
	gpus map[string]*patient
	// records are of all GPUs that have or had faults, by UUID.
	records map[string]health.Record
	// filed are the faults that this process has read or written, including those that it has ended, by
	// UUID.
	filed map[string]health.Record
	// seen are the GPUs as they were read last. unsaved: the file lacks some of them.
	seen    map[string]gpu.GPU
	unsaved bool
	// stalled: the driver did not answer about any GPU in the last round.
	stalled bool
}

// answer is the result of a poll.
type answer struct {
	level health.Level
	err   error
}

// patient is a watched GPU.
type patient struct {
	uuid string
	// missing is why the GPU cannot be read, nil if it can.
	missing error
	pending []health.Event
	asked   time.Time
	failed  int
	// asking: a poll has not returned; answer is a result that no round has judged, or nil.
	asking bool
	answer *answer
	// late is when the GPU stopped answering, zero while it answers.
	late time.Time
	// apart is since when it is late while others answer, or unreadable while others are read; else zero.
	apart time.Time
	// restored: its faults may be over with the next answer.
	restored bool
	// repaired is when an administrator repaired it, zero for never.
	repaired time.Time
}

// New returns a Monitor of no GPUs.
func New(options Options) *Monitor {
	return &Monitor{Options: options, wake: wake.New(), gpus: map[string]*patient{}, records: map[string]health.Record{}, filed: map[string]health.Record{}, seen: map[string]gpu.GPU{}}
}

// See reports the GPUs that were read, and why others could not be, by UUID.
func (m *Monitor) See(present []gpu.GPU, missing map[string]error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := maps.Clone(missing)
	if seen == nil {
		seen = map[string]error{}
	}
	for _, g := range present {
		seen[g.UUID] = nil
		if _, known := m.seen[g.UUID]; !known {
			m.unsaved = true
		}
		m.seen[g.UUID] = g
	}
	changed := false
	for uuid, err := range seen {
		p, known := m.gpus[uuid]
		if !known {
			p = &patient{uuid: uuid}
			m.gpus[uuid] = p
		}
		if !known || (p.missing == nil) != (err == nil) {
			p.asked, p.apart, changed = time.Time{}, time.Time{}, true
		}
		p.missing = err
		p.unread(len(present) > 0)
	}
	maps.DeleteFunc(m.gpus, func(uuid string, _ *patient) bool { _, there := seen[uuid]; return !there })
	maps.DeleteFunc(m.seen, func(uuid string, _ gpu.GPU) bool { _, there := seen[uuid]; return !there })
	if changed {
		m.wake.Wake()
	}
}

// unread notes since when the GPU does not answer, and whether others can be read.
func (p *patient) unread(others bool) {
	silent := errors.Is(p.missing, nvml.ErrSilent)
	switch {
	case p.missing == nil: // it is asked
	case !silent:
		p.late, p.apart = time.Time{}, time.Time{}
	default:
		if p.late.IsZero() {
			p.late = time.Now()
		}
		p.besides(others)
	}
}

// besides notes whether the driver answers about others while the GPU is late.
func (p *patient) besides(others bool) {
	switch {
	case !others:
		p.apart = time.Time{}
	case p.apart.IsZero():
		p.apart = time.Now()
	}
}

// Remembered lists the GPUs that this process or an earlier one has seen since the boot.
func (m *Monitor) Remembered() []gpu.GPU {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.seen))
}

// Record returns a GPU's health.
func (m *Monitor) Record(uuid string) health.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records[uuid]
}

// Known returns the records of watched GPUs that have or had faults.
func (m *Monitor) Known() map[string]health.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := map[string]health.Record{}
	for uuid := range m.gpus {
		if record := m.records[uuid]; len(record.Faults) > 0 || record.Resets.Persistent {
			known[uuid] = record
		}
	}
	return known
}

// KeepResets stores the attempts to reset a GPU. Only Repair may call it.
func (m *Monitor) KeepResets(ctx context.Context, uuid string, resets health.Resets) {
	m.mu.Lock()
	record := m.records[uuid]
	record.Resets = resets
	m.records[uuid] = record
	m.mu.Unlock()
	m.save(ctx)
}

// Restored notes that a GPU was reset: it is polled at once, and its faults may be over.
func (m *Monitor) Restored(uuid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, known := m.gpus[uuid]; known {
		p.restored, p.asked = true, time.Time{}
		m.wake.Wake()
	}
}

// Repaired sets when an administrator repaired GPUs, by UUID, and polls those at once.
func (m *Monitor) Repaired(times map[string]time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uuid, p := range m.gpus {
		if at := times[uuid]; !at.Equal(p.repaired) {
			p.repaired, p.asked = at, time.Time{}
			m.wake.Wake()
		}
	}
}

// Released notes that a claim has ended, so that a GPU may be repaired.
func (m *Monitor) Released() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uuid := range m.gpus {
		if len(m.records[uuid].Faults) > 0 {
			m.wake.Wake()
			return
		}
	}
}

// Run watches until ctx ends. Call Load first.
func (m *Monitor) Run(ctx context.Context, gpus GPUs) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.listen(ctx, gpus) })
	group.Go(func() error { return m.ask(ctx, gpus) })
	return group.Wait()
}

// listen collects events.
func (m *Monitor) listen(ctx context.Context, gpus GPUs) error {
	again := listenAgain.DelayFunc()
	for {
		report, err := gpus.NextEvent(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			again = listenAgain.DelayFunc()
			m.receive(report)
			continue
		}
		klog.FromContext(ctx).V(2).Info("Cannot receive events from the NVIDIA driver; polling the GPUs", "reason", err.Error())
		m.suspectAll()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(again()):
		}
	}
}

func (m *Monitor) receive(report nvml.Report) {
	if report.XID != 0 {
		countXID(report.XID)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p, known := m.gpus[report.UUID]
	if !known {
		return
	}
	if (report.XID != 0 || report.Incident != "") && len(p.pending) < maxPending && !slices.Contains(p.pending, report.Event) {
		p.pending = append(p.pending, report.Event)
	}
	p.asked = time.Time{}
	m.wake.Wake()
}

// suspectAll makes every GPU due.
func (m *Monitor) suspectAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.gpus {
		p.asked = time.Time{}
	}
	m.wake.Wake()
}
