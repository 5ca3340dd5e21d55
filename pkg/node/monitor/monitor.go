// Package monitor watches the health of a node's GPUs: it listens to their driver, asks each GPU
// how it is, and keeps what pkg/health makes of that, over restarts of the process too. It never
// changes a GPU and never taints a device.
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
)

const (
	// askInterval is how long a fault may go unseen of which the driver reports nothing.
	askInterval = time.Minute
	// patience is how long a round waits for answers. It is more than the 10 seconds after which pkg/node/nvml calls a GPU silent,
	// so that its word comes first.
	patience = 15 * time.Second
	// lateInterval is between two questions to a GPU that has not answered, and to all others, which then show whether the
	// driver answers at all.
	lateInterval = 10 * time.Second
	// apartTime is how long a GPU may be unreadable while others are read. They are looked for again within a minute.
	apartTime = 2 * time.Minute
	// stallTime is how long the driver may answer about no GPU at all. One GPU whose system processor does not answer
	// holds the driver's lock for 45 seconds, and up to three times in a row (XID 119).
	stallTime = 5 * time.Minute
	// roundPause bounds how often GPUs are asked because of events.
	roundPause = 500 * time.Millisecond
	// tellPause bounds how often Changed is called: whoever publishes taints writes slices.
	tellPause = 2500 * time.Millisecond
	// maxPending bounds the events of a GPU between two rounds; the first are those that tell
	// the cause.
	maxPending = 64
	// attempts are how often a GPU may fail to say how it is, without being lost.
	attempts = 3
)

// listenAgain is how long nobody listens after the driver has refused it.
var listenAgain = wait.Backoff{Duration: time.Second, Factor: 2, Cap: time.Minute, Steps: math.MaxInt}

// GPUs are those of an open NVIDIA driver.
type GPUs interface {
	// Health asks a GPU how it is. The error is nvml.ErrGPULost where it is lost, and nvml.ErrSilent
	// where it does not answer.
	Health(uuid string) (health.Level, error)
	// NextEvent waits for a report of any GPU.
	NextEvent(ctx context.Context) (nvml.Report, error)
}

// Change is what is new about a GPU.
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
	// File keeps what is known. It belongs to the plugins of one node.
	File string
	// BootID identifies the kernel's current run.
	BootID string
	// Quiet is how long the cause of a fault has to be gone before the fault is over.
	Quiet time.Duration
	// Changed is called when faults have come or gone.
	Changed func()
	// Asked is called when GPUs have been asked, for which the driver was opened if it rested.
	Asked func()
	// Repair is called after each round of questions. No GPU is asked until it returns.
	Repair func(ctx context.Context)
	// Tell says what is new to who has to know.
	Tell func(ctx context.Context, change Change)
	// Stalled is called once if the driver answers about no GPU of several. They are taken for
	// unresponsive if that lasts for the given time.
	Stalled func(ctx context.Context, lasts time.Duration)
}

// Monitor is what is known of the health of a node's GPUs. New has no effects; Run has.
type Monitor struct {
	Options
	wake chan struct{}

	mu   sync.Mutex
	gpus map[string]*patient
	// records are those of all GPUs that are known to have or have had faults, by UUID.
	records map[string]health.Record
	// filed are the faults that this process has read or written, also those that it has ended, by UUID.
	filed map[string]health.Record
	// seen are the GPUs as they were read last. unsaved tells that there are others than in the file.
	seen    map[string]gpu.GPU
	unsaved bool
	// stalled is true if the driver answered about no GPU when it was last asked.
	stalled bool
}

// answer is what a GPU has said of itself.
type answer struct {
	level health.Level
	err   error
}

// patient is a GPU that is watched.
type patient struct {
	uuid string
	// missing says why the GPU cannot be read, nil if it can.
	missing error
	pending []health.Event
	asked   time.Time
	failed  int
	// asking reports that a question has no answer yet; answer is one that no round has judged, or nil.
	asking bool
	answer *answer
	// late is since when the GPU does not answer, zero while it does.
	late time.Time
	// apart is since when that is so beside others that answer, or that can be read if this one cannot; else zero.
	apart time.Time
	// restored tells that what was wrong can be over when it answers next.
	restored bool
	// repaired is when an administrator had repaired it, zero for never.
	repaired time.Time
}

// New returns a Monitor of no GPUs.
func New(options Options) *Monitor {
	return &Monitor{Options: options, wake: make(chan struct{}, 1), gpus: map[string]*patient{}, records: map[string]health.Record{}, filed: map[string]health.Record{}, seen: map[string]gpu.GPU{}}
}

// See tells which GPUs there are: those that were read, and those that could not be, by UUID.
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
		m.rouse()
	}
}

// unread notes since when the GPU cannot be read because it does not answer, and whether others can be read.
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

// Remembered are the GPUs that have been seen, by this process or by an earlier one since the
// machine started.
func (m *Monitor) Remembered() []gpu.GPU {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.seen))
}

// Record is what is known of a GPU.
func (m *Monitor) Record(uuid string) health.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records[uuid]
}

// Known are the records of GPUs that are watched and have, or have had, something wrong.
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

// KeepResets keeps the attempts to reset a GPU. Only Repair may call it.
func (m *Monitor) KeepResets(ctx context.Context, uuid string, resets health.Resets) {
	m.mu.Lock()
	record := m.records[uuid]
	record.Resets = resets
	m.records[uuid] = record
	m.mu.Unlock()
	m.save(ctx)
}

// Restored tells that a GPU was reset: it is asked at once, and what was wrong can be over.
func (m *Monitor) Restored(uuid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, known := m.gpus[uuid]; known {
		p.restored, p.asked = true, time.Time{}
		m.rouse()
	}
}

// Repaired tells when an administrator had repaired GPUs, by UUID. Those are asked at once.
func (m *Monitor) Repaired(times map[string]time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uuid, p := range m.gpus {
		if at := times[uuid]; !at.Equal(p.repaired) {
			p.repaired, p.asked = at, time.Time{}
			m.rouse()
		}
	}
}

// Released tells that a claim has ended, so that a GPU may be repaired now.
func (m *Monitor) Released() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uuid := range m.gpus {
		if len(m.records[uuid].Faults) > 0 {
			m.rouse()
			return
		}
	}
}

func (m *Monitor) rouse() {
	select {
	case m.wake <- struct{}{}:
	default: // it has not yet seen the last one
	}
}

// Run watches until ctx ends. Load comes before it.
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
		klog.FromContext(ctx).V(2).Info("The NVIDIA driver reports no events for a while; the GPUs are asked", "reason", err.Error())
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
	m.rouse()
}

// suspectAll has every GPU asked.
func (m *Monitor) suspectAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.gpus {
		p.asked = time.Time{}
	}
	m.rouse()
}
