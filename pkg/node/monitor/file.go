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

// maxFile bounds what is read of the file, in bytes.
const maxFile = 1 << 20

// file is what is kept.
type file struct {
	// BootID is that of the kernel that wrote it.
	BootID string `json:"bootID"`
	// GPUs are the records by UUID.
	GPUs map[string]health.Record `json:"gpus"`
	// Seen are all GPUs that could be read, and those with a fault, as they were read last.
	Seen map[string]gpu.GPU `json:"seen,omitempty"`
}

// Load takes up what an earlier process knew, as if it had lasted until now: nobody has looked
// meanwhile. What another kernel knew is over unless the GPU says that it lasts, because a machine
// that starts resets its GPUs.
func (m *Monitor) Load(ctx context.Context) {
	drafts, _ := filepath.Glob(m.File + ".*") // the only error is that of a bad pattern
	for _, draft := range drafts {
		_ = os.Remove(draft) // of a process that was killed; another one that writes now, writes again
	}
	kept, err := m.read()
	if err != nil {
		klog.FromContext(ctx).Error(err, "What was known of the GPUs' health is forgotten", "file", m.File)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for uuid, record := range kept.GPUs {
		for i := range record.Faults {
			if kept.BootID == m.BootID {
				record.Faults[i].Last = time.Now().UTC().Truncate(time.Second)
			} else {
				record.Faults[i].Unconfirmed = false
			}
		}
		if kept.BootID != m.BootID {
			record.Notes = nil
		}
		m.records[uuid] = record
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

// save keeps what is known: a GPU may be lost while no process looks. Of a fault that another plugin
// process of a rolling update has seen earlier, that time counts: both publish the same.
func (m *Monitor) save(ctx context.Context) {
	other, err := m.read()
	if err != nil {
		other = file{} // it is replaced
	}
	kept := file{BootID: m.BootID, GPUs: map[string]health.Record{}}
	m.mu.Lock()
	kept.Seen = maps.Clone(m.seen)
	for uuid, record := range m.records {
		if other.BootID == m.BootID {
			record = record.Since(other.GPUs[uuid])
			m.records[uuid] = record
		}
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
		klog.FromContext(ctx).Error(err, "What is known of the GPUs' health would be lost by a restart", "file", m.File)
	}
}
