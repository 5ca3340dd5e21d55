package monitor

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/nvml"
)

// ask goes round the GPUs that are due.
func (m *Monitor) ask(ctx context.Context, gpus GPUs) error {
	var told time.Time
	untold := false
	for {
		untold = m.round(ctx, gpus) || untold
		m.Repair(ctx)
		pause := m.nextRound()
		if untold {
			if due := tellPause - time.Since(told); due > 0 {
				pause = min(pause, due)
			} else {
				told, untold = time.Now(), false
				m.Changed()
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(pause, roundPause)):
			continue
		case <-m.wake:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(roundPause):
		}
	}
}

// nextRound is how long no GPU is due.
func (m *Monitor) nextRound() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	pause := askInterval
	for uuid := range m.gpus {
		if len(m.records[uuid].Faults) > 0 {
			pause = min(pause, m.Quiet)
		}
	}
	return pause
}

// round asks the GPUs that are due, all at once, and tells whether faults have come or gone.
func (m *Monitor) round(ctx context.Context, gpus GPUs) (changed bool) {
	type answer struct {
		uuid  string
		level health.Level
		err   error
	}
	due := m.due()
	answers := make(chan answer, len(due))
	for _, uuid := range due {
		go func() {
			level, err := gpus.Health(uuid)
			m.answered(uuid)
			answers <- answer{uuid, level, err}
		}()
	}
	late := time.After(patience)
	waiting := len(due)
	for waiting > 0 {
		select {
		case a := <-answers:
			waiting--
			changed = m.judge(ctx, a.uuid, m.facts(a.uuid, a.level, a.err)) || changed
		case <-late:
			waiting = 0
		case <-ctx.Done():
			return changed
		}
	}
	if len(due) > 0 {
		m.Asked()
	}
	for _, uuid := range m.overdue() {
		changed = m.judge(ctx, uuid, m.take(uuid, health.Facts{Reach: health.Silent})) || changed
	}
	for uuid, err := range m.missing() {
		facts := health.Facts{Reach: health.Gone, Why: err.Error()}
		if errors.Is(err, nvml.ErrSilent) {
			facts = health.Facts{Reach: health.Silent}
		}
		changed = m.judge(ctx, uuid, m.take(uuid, facts)) || changed
	}
	if m.takeUnsaved() || changed {
		m.save(ctx)
	}
	return changed
}

func (m *Monitor) takeUnsaved() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	unsaved := m.unsaved
	m.unsaved = false
	return unsaved
}

// due are the GPUs that are to be asked now. They count as asked.
func (m *Monitor) due() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var uuids []string
	for uuid, p := range m.gpus {
		interval := askInterval
		if len(m.records[uuid].Faults) > 0 {
			interval = min(interval, m.Quiet)
		}
		if p.missing == nil && !p.asking && time.Since(p.asked) >= interval {
			p.asked, p.asking = time.Now(), true
			uuids = append(uuids, uuid)
		}
	}
	return uuids
}

func (m *Monitor) answered(uuid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, known := m.gpus[uuid]; known {
		p.asking = false
	}
}

// missing are the GPUs that cannot be read, and why.
func (m *Monitor) missing() map[string]error {
	m.mu.Lock()
	defer m.mu.Unlock()
	errs := map[string]error{}
	for uuid, p := range m.gpus {
		if p.missing != nil {
			errs[uuid] = p.missing
		}
	}
	return errs
}

// overdue are the GPUs that owe an answer for too long.
func (m *Monitor) overdue() (uuids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uuid, p := range m.gpus {
		if p.asking && time.Since(p.asked) >= patience {
			uuids = append(uuids, uuid)
		}
	}
	return uuids
}

// facts are what an answer says.
func (m *Monitor) facts(uuid string, level health.Level, err error) health.Facts {
	switch {
	case err == nil:
		return m.take(uuid, health.Facts{Reach: health.Answers, Level: level})
	case errors.Is(err, nvml.ErrSilent):
		return m.take(uuid, health.Facts{Reach: health.Silent})
	case errors.Is(err, nvml.ErrGPULost) || m.failedTooOften(uuid):
		return m.take(uuid, health.Facts{Reach: health.Gone, Why: err.Error()})
	}
	return health.Facts{} // what has been reported is judged when the GPU says how it is
}

func (m *Monitor) failedTooOften(uuid string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, known := m.gpus[uuid]
	if !known {
		return false
	}
	p.failed++
	return p.failed >= attempts
}

// take adds to the facts the events that have come, and whether the GPU has come back.
func (m *Monitor) take(uuid string, facts health.Facts) health.Facts {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, known := m.gpus[uuid]; known {
		facts.Events, p.pending = p.pending, nil
		if facts.Reach == health.Answers {
			p.failed = 0
		}
	}
	before := m.records[uuid].Reach
	restored := before == health.Gone || before == health.Silent
	if p, known := m.gpus[uuid]; known && facts.Reach == health.Answers {
		restored, p.restored = restored || p.restored, false
	}
	facts.Restored = facts.Reach == health.Answers && restored
	return facts
}

// judge keeps what the facts mean, and tells what is new.
func (m *Monitor) judge(ctx context.Context, uuid string, facts health.Facts) (changed bool) {
	m.mu.Lock()
	before := m.records[uuid]
	after := before.Next(facts, health.Rules{Quiet: m.Quiet}, time.Now().UTC().Truncate(time.Second))
	m.records[uuid] = after
	m.mu.Unlock()
	change := compare(uuid, before, after)
	if len(change.Faults)+len(change.Notes)+len(change.Over) > 0 {
		m.Tell(ctx, change)
	}
	return len(change.Faults)+len(change.Over) > 0 || before.Reach != after.Reach || before.Action != after.Action
}

// compare finds what is new.
func compare(uuid string, before, after health.Record) Change {
	change := Change{UUID: uuid}
	for _, fault := range after.Faults {
		known, found := before.Like(fault)
		if !found || known.Severity < fault.Severity {
			change.Faults = append(change.Faults, fault)
		}
	}
	for _, fault := range before.Faults {
		if _, found := after.Like(fault); !found {
			change.Over = append(change.Over, fault)
		}
	}
	for _, note := range after.Notes {
		if !slices.Contains(before.Notes, note) {
			change.Notes = append(change.Notes, note)
		}
	}
	return change
}
