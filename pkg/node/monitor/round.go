package monitor

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/nvml"
)

// ask polls the GPUs that are due.
func (m *Monitor) ask(ctx context.Context, gpus GPUs) error {
	var reported time.Time
	changed := false
	for {
		changed = m.round(ctx, gpus) || changed
		m.Repair(ctx)
		pause := m.nextRound()
		if changed {
			if due := changedPause - time.Since(reported); due > 0 {
				pause = min(pause, due)
			} else {
				reported, changed = time.Now(), false
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

// nextRound is the time until a GPU is due.
func (m *Monitor) nextRound() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	pause := askInterval
	for uuid, p := range m.gpus {
		pause = min(pause, m.interval(uuid))
		if !p.late.IsZero() {
			pause = min(pause, lateInterval)
		}
	}
	return pause
}

// interval is the time between polls of a GPU that answers. The caller holds mu.
func (m *Monitor) interval(uuid string) time.Duration {
	if len(m.records[uuid].Faults) > 0 {
		return min(askInterval, m.Quiet)
	}
	return askInterval
}

// round polls the due GPUs in parallel, and reports whether faults have begun or ended.
func (m *Monitor) round(ctx context.Context, gpus GPUs) (changed bool) {
	due := m.due()
	arrived := make(chan struct{}, len(due))
	for _, uuid := range due {
		go func() {
			level, err := gpus.Health(uuid)
			m.answered(uuid, answer{level, err})
			arrived <- struct{}{}
		}()
	}
	late := time.After(patience)
	answered := 0
	for waiting := len(due); waiting > 0; {
		select {
		case <-arrived:
			waiting--
		case <-late:
			waiting = 0
		case <-ctx.Done():
			return changed
		}
		for uuid, a := range m.arrivals() {
			if !errors.Is(a.err, nvml.ErrSilent) {
				answered++
				changed = m.judge(ctx, uuid, m.facts(uuid, a.level, a.err)) || changed
			}
		}
	}
	if len(due) > 0 {
		m.Asked()
	}
	for _, uuid := range m.silent(answered > 0) {
		changed = m.judge(ctx, uuid, m.take(uuid, health.Facts{Reach: health.Silent})) || changed
	}
	for uuid, err := range m.missing() {
		changed = m.judge(ctx, uuid, m.take(uuid, health.Facts{Reach: health.Gone, Why: err.Error()})) || changed
	}
	m.watchStall(ctx, answered > 0)
	if m.takeUnsaved() || changed {
		changed = m.save(ctx) || changed
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

// due lists the GPUs to poll now: all if one is late. They count as polled.
func (m *Monitor) due() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var uuids []string
	late := m.late() > 0
	for uuid, p := range m.gpus {
		if p.missing == nil && !p.asking && (late || time.Since(p.asked) >= m.interval(uuid)) {
			p.asked, p.asking = time.Now(), true
			uuids = append(uuids, uuid)
		}
	}
	return uuids
}

// late counts the GPUs that do not answer. The caller holds mu.
func (m *Monitor) late() (count int) {
	for _, p := range m.gpus {
		if !p.late.IsZero() {
			count++
		}
	}
	return count
}

// answered stores an answer for the next round, also one that arrives after its own.
func (m *Monitor) answered(uuid string, a answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, known := m.gpus[uuid]; known {
		p.asking, p.answer = false, &a
	}
}

// arrivals are the answers that no round has judged.
func (m *Monitor) arrivals() map[string]answer {
	m.mu.Lock()
	defer m.mu.Unlock()
	answers := map[string]answer{}
	for uuid, p := range m.gpus {
		if p.answer == nil {
			continue
		}
		answers[uuid], p.answer = *p.answer, nil
		switch {
		case !errors.Is(answers[uuid].err, nvml.ErrSilent):
			p.late, p.apart = time.Time{}, time.Time{}
		case p.late.IsZero():
			p.late = p.asked
		}
	}
	return answers
}

// missing lists unreadable GPUs with the reason. Those that do not answer are silent.
func (m *Monitor) missing() map[string]error {
	m.mu.Lock()
	defer m.mu.Unlock()
	errs := map[string]error{}
	for uuid, p := range m.gpus {
		if p.missing != nil && !errors.Is(p.missing, nvml.ErrSilent) {
			errs[uuid] = p.missing
		}
	}
	return errs
}

// silent lists the GPUs that have not answered for too long. NVML takes locks of the driver, so one
// GPU can block calls for all: a GPU that is late in two rounds while others answer is at fault
// itself; if all are late, the driver is.
func (m *Monitor) silent(others bool) (uuids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uuid, p := range m.gpus {
		if p.asking && p.late.IsZero() && time.Since(p.asked) >= patience {
			p.late = p.asked
		}
		if p.late.IsZero() {
			continue
		}
		bound := apartTime
		if p.missing == nil {
			bound = lateInterval
			p.besides(others)
		}
		if time.Since(p.late) >= stallTime || !p.apart.IsZero() && time.Since(p.apart) >= bound {
			uuids = append(uuids, uuid)
		}
	}
	return uuids
}

// watchStall reports once that the driver does not answer about any of several GPUs.
func (m *Monitor) watchStall(ctx context.Context, answered bool) {
	m.mu.Lock()
	late, was := m.late(), m.stalled
	m.stalled = late > 1 && late == len(m.gpus) && !answered
	begins := m.stalled && !was
	m.mu.Unlock()
	if begins {
		m.Stalled(ctx, stallTime)
	}
}

// facts converts an answer.
func (m *Monitor) facts(uuid string, level health.Level, err error) health.Facts {
	switch {
	case err == nil:
		return m.take(uuid, health.Facts{Reach: health.Answers, Level: level})
	case errors.Is(err, nvml.ErrGPULost) || m.failedTooOften(uuid):
		return m.take(uuid, health.Facts{Reach: health.Gone, Why: err.Error()})
	}
	return health.Facts{} // events are judged when the GPU answers
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

// take adds pending events, and whether the GPU came back or was repaired.
func (m *Monitor) take(uuid string, facts health.Facts) health.Facts {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, known := m.gpus[uuid]; known {
		facts.Events, p.pending = p.pending, nil
		facts.Repaired = p.repaired
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

// judge updates a record and reports changes.
func (m *Monitor) judge(ctx context.Context, uuid string, facts health.Facts) (changed bool) {
	m.mu.Lock()
	before := m.records[uuid]
	after := before.Next(facts, health.Rules{Quiet: m.Quiet}, time.Now().UTC().Truncate(time.Second))
	m.records[uuid] = after
	m.mu.Unlock()
	change := compare(uuid, before, after)
	if len(change.Faults)+len(change.Notes)+len(change.Over) > 0 {
		m.Notify(ctx, change)
	}
	return len(change.Faults)+len(change.Over) > 0 || before.Reach != after.Reach || before.Action != after.Action
}

// compare returns the change between two records.
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
