package model

import (
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// recoveryDelay is the time between an XID and the recovery action that it causes: the kernel module refreshes the action in a
// work item (gpuRefreshRecoveryAction in gpu.c of NVIDIA/open-gpu-kernel-modules). The length is a guess; it is longer than clients
// need to read the XID and to find no action.
const recoveryDelay = 2 * time.Second

// recovery is the action that the driver asks for after an XID.
type recovery struct {
	// since is the first release of the driver that does.
	since  int
	action RecoveryAction
}

// recoveries are the XIDs that NVIDIA's XID catalog links to Xid 154 in the column "Xid 154 linkage"
// (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), with the action of the column "Immediate Action". No driver links 46,
// 54, 119, 140 and 151. Those are left out whose immediate action concerns the application or nothing: which action follows 63, 94,
// 160 and 161 the catalog does not say. 158 is linked by every driver that has it.
var recoveries = map[uint64]recovery{
	48: {565, "gpu-reset"}, 62: {565, "gpu-reset"}, 64: {565, "gpu-reset"}, 74: {565, "gpu-reset"}, 79: {565, "node-reboot"},
	95: {565, "gpu-reset"}, 109: {570, "gpu-reset"}, 110: {565, "gpu-reset"}, 120: {565, "gpu-reset"}, 136: {565, "gpu-reset"},
	143: {575, "gpu-reset"}, 144: {565, "gpu-reset"}, 145: {565, "gpu-reset"}, 146: {565, "gpu-reset"}, 147: {565, "gpu-reset"},
	148: {565, "gpu-reset"}, 149: {565, "gpu-reset"}, 150: {565, "gpu-reset"}, 155: {565, "gpu-reset"}, 156: {565, "gpu-reset"},
	158: {565, "gpu-reset"},
}

// recoveryActionRelease is the first release of the driver that has a recovery action: field 230
// is in nvml.h from R565 on.
const recoveryActionRelease = 565

// release is that of the driver, such as 580.
func (m *Machine) release() (release int) {
	_, _ = fmt.Sscanf(m.file.DriverVersion, "%d.", &release)
	return release
}

// hasRecoveryAction reports whether the driver has them.
func (m *Machine) hasRecoveryAction() bool { return m.release() >= recoveryActionRelease }

// recoverLater has the GPU ask for the action that an XID causes, unless what is wrong ends before. It is called with Machine.mu
// held.
func (m *Machine) recoverLater(g *gpu, e Event) {
	recovery, linked := recoveries[e.Data]
	if e.Type != nvml.EventTypeXidCriticalError || !linked || !m.hasRecoveryAction() || m.release() < recovery.since {
		return
	}
	cause := &e.Data
	g.recovering = append(g.recovering, cause)
	time.AfterFunc(recoveryDelay, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		at := slices.Index(g.recovering, cause)
		if at < 0 {
			return
		}
		g.recovering = slices.Delete(g.recovering, at, at+1)
		if g.condition.RecoveryAction.number() >= recovery.action.number() {
			return // what it asks for already is enough
		}
		g.condition.RecoveryAction = recovery.action
		m.deliver(g, recoveryActionChanged(g.index))
	})
}

func recoveryActionChanged(gpu int) Event {
	return Event{GPU: gpu, Type: nvml.EventTypeGpuRecoveryAction, GPUInstanceID: WholeGPU, ComputeInstanceID: WholeGPU}
}
