package monitor

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/atomicfile"
)

// maxFile bounds the size of the file, in bytes.
const maxFile = 1 << 20

// file is the persistent state.
type file struct {
	// BootID is the writing kernel's.
	BootID string `json:"bootID"`
	// GPUs are the records by UUID.
	GPUs map[string]health.Record `json:"gpus"`
	// Seen are all GPUs that could be read, and those with a fault, as last read.
	Seen map[string]gpu.GPU `json:"seen,omitempty"`
}

// Load restores the state of an earlier process, as if its faults had lasted until now. Faults under
// another kernel are over unless the GPU confirms them, because a boot resets GPUs.
func (m *Monitor) Load(ctx context.Context) {
	drafts, _ := filepath.Glob(m.File + ".*") // the only error is that of a bad pattern
	for _, draft := range drafts {
		_ = os.Remove(draft) // of a process that was killed; another one that writes now, writes again
	}
	kept, err := m.read()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot load the GPUs' health; starting without it", "file", m.File)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for uuid, record := range kept.GPUs {
		for i, fault := range record.Faults {
			switch {
			case kept.BootID != m.BootID:
				record.Faults[i].Unconfirmed = false
			case !fault.Unconfirmed: // else a repair must be later than Last, when the error came
				record.Faults[i].Last = time.Now().UTC().Truncate(time.Second)
			}
		}
		if kept.BootID != m.BootID {
			record.Notes = nil
		}
		m.records[uuid] = record
		m.filed[uuid] = health.Record{}.Known(record)
	}
	if kept.BootID == m.BootID && kept.Seen != nil {
		m.seen = kept.Seen
	}
}

func (m *Monitor) read() (kept file, err error) {
	opened, err := os.Open(m.File)
	if errors.Is(err, fs.ErrNotExist) {
		return file{}, nil
	}
	if err != nil {
		return file{}, err
	}
	defer func() { _ = opened.Close() }()
	decoder := json.NewDecoder(io.LimitReader(opened, maxFile))
	if err := decoder.Decode(&kept); err != nil {
		return file{}, fmt.Errorf("decode: %w", err)
	}
	return kept, nil
}

// save writes the state. It reports whether another plugin process of a rolling update has written a
// fault that this one takes over.
func (m *Monitor) save(ctx context.Context) (changed bool) {
	other, err := m.read()
	if err != nil || other.BootID != m.BootID {
		other = file{} // it is replaced
	}
	kept := file{BootID: m.BootID, GPUs: map[string]health.Record{}}
	m.mu.Lock()
	changed = m.merge(other.GPUs)
	kept.Seen = maps.Clone(m.seen)
	for uuid, record := range m.records {
		if len(record.Faults)+len(record.Notes) > 0 || record.Resets.Persistent {
			kept.GPUs[uuid] = record
		} else if _, watched := m.gpus[uuid]; !watched {
			delete(m.records, uuid)
		}
	}
	m.mu.Unlock()
	content, err := json.Marshal(kept)
	if err == nil {
		err = atomicfile.Write(m.File, m.File+"."+rand.Text(), bytes.NewReader(content), 0o600)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot save the GPUs' health; a restart would lose it", "file", m.File)
	}
	return changed
}

// merge adopts the records of another process, and reports whether they have other faults. The caller
// holds mu.
func (m *Monitor) merge(written map[string]health.Record) (changed bool) {
	for uuid, theirs := range written {
		ours := m.records[uuid]
		merged := ours.Merge(theirs, m.filed[uuid])
		changed = changed || len(merged.Faults) != len(ours.Faults)
		if len(merged.Faults) > 0 {
			m.records[uuid] = merged
		}
	}
	for uuid, record := range m.records {
		if len(record.Faults) > 0 {
			m.filed[uuid] = m.filed[uuid].Known(record)
		}
	}
	return changed
}
