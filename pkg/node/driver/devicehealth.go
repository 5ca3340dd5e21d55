package driver

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/monitor"
)

// Reasons of Events about the health of GPUs, on the node and on claims.
const (
	// ReasonFault: a GPU has a fault. ReasonRecovered: the fault is over.
	ReasonFault     = "GPUFault"
	ReasonRecovered = "GPURecovered"
	// ReasonError: the driver reported an error that is not a fault of the GPU.
	ReasonError = "GPUError"
	// ReasonReset: the plugin reset a sick GPU. ReasonNotReset: a reset failed.
	ReasonReset    = "GPUReset"
	ReasonNotReset = "GPUResetFailed"
	// ReasonStalled: the NVIDIA driver does not answer about any GPU.
	ReasonStalled = "NVIDIADriverStalled"
)

// DefaultHealthQuiet keeps a GPU that fails intermittently out of use.
const DefaultHealthQuiet = 5 * time.Minute

const (
	// healthInterval is how often kubelet gets a report. kubelet treats a device without a report for
	// healthTimeout as unknown.
	healthInterval = 10 * time.Second
	healthTimeout  = 30 * time.Second
	// maxHealthMessage is kubelet's limit (maxHealthMessageLength in k8s.io/kubernetes
	// pkg/kubelet/cm/dra), in bytes.
	maxHealthMessage = 1024
)

// bell wakes all its waiters.
type bell struct {
	mu   sync.Mutex
	rung chan struct{}
}

// wait returns a channel that is closed when the bell rings next.
func (b *bell) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rung == nil {
		b.rung = make(chan struct{})
	}
	return b.rung
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rung != nil {
		close(b.rung)
		b.rung = nil
	}
}

// healthChanged updates slices and kubelet after a change of health.
func (d *Driver) healthChanged() {
	d.offer.Reconsider()
	d.healthBell.ring()
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin (KEP-4680): pods see the health of their
// devices in their status.
func (d *Driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		rung := d.healthBell.wait()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case reports <- d.healthReport():
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-rung:
		case <-time.After(healthInterval):
		}
	}
}

// healthReport is the health of each offered device.
func (d *Driver) healthReport() kubeletplugin.DeviceHealthReport {
	now := time.Now()
	var report kubeletplugin.DeviceHealthReport
	records := map[string]health.Record{}
	for _, shape := range d.offer.State().Shapes {
		uuid := shape.Physical().UUID
		record, read := records[uuid]
		if !read {
			record = d.monitor.Record(uuid)
			records[uuid] = record
		}
		status, message := deviceHealth(record, shape)
		report.Devices = append(report.Devices, kubeletplugin.DeviceHealth{
			PoolName: d.NodeName, DeviceName: shape.Name(), Health: status, Message: message, LastUpdated: now, HealthCheckTimeout: healthTimeout,
		})
	}
	return report
}

// deviceHealth converts a health record to kubelet's terms.
func deviceHealth(record health.Record, shape gpu.Shape) (kubeletplugin.HealthStatus, string) {
	severity, words := record.Of(shape)
	message := excerpt.Of(strings.Join(words, ". "), maxHealthMessage)
	switch {
	case severity >= health.Drain:
		return kubeletplugin.HealthStatusUnhealthy, message
	case record.Reach == health.Unasked:
		return kubeletplugin.HealthStatusUnknown, message
	}
	return kubeletplugin.HealthStatusHealthy, message
}

// notifyHealth sends Events about a change of a GPU's health, to the node and the claims that hold it.
func (d *Driver) notifyHealth(ctx context.Context, change monitor.Change) {
	logger := klog.FromContext(ctx)
	for _, fault := range change.Faults {
		logger.Info("A GPU has a fault", "gpu", change.UUID, "condition", fault.Condition, "value", fault.Value, "severity", fault.Severity.String(), "reason", fault.Words)
		d.notifyHolders(ctx, change.UUID, fault.Place, corev1.EventTypeWarning, ReasonFault, fault.Words)
	}
	for _, note := range change.Notes {
		logger.Info("The driver has reported an error", "gpu", change.UUID, "reason", note.Words)
		d.notifyHolders(ctx, change.UUID, note.Place, corev1.EventTypeWarning, ReasonError, note.Words)
	}
	for _, fault := range change.Over {
		logger.Info("A GPU has recovered", "gpu", change.UUID, "condition", fault.Condition, "value", fault.Value)
		d.notifyHolders(ctx, change.UUID, fault.Place, corev1.EventTypeNormal, ReasonRecovered, "over: "+fault.Words)
	}
}

// notifyStall sends an Event to the node when the driver stops answering.
func (d *Driver) notifyStall(ctx context.Context, lasts time.Duration) {
	sentence := fmt.Sprintf("the NVIDIA driver does not answer about any GPU, as while it recovers one of them; after %v all count as unresponsive: look for messages of NVRM in the kernel's log", lasts)
	klog.FromContext(ctx).Info("The NVIDIA driver is stalled", "reason", sentence)
	d.events.WarnNode(ReasonStalled, sentence)
}

// notifyHolders sends an Event to the node and to the claims that hold the place on a GPU or part of it.
func (d *Driver) notifyHolders(ctx context.Context, uuid string, place gpu.Placement, kind, reason, words string) {
	sentence := "GPU " + uuid + ": " + words
	d.events.send(d.events.node(), kind, reason, sentence)
	records, err := d.preparer.Prepared(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot send Events about a GPU's health to its claims", "gpu", uuid)
		return
	}
	for _, record := range records {
		for _, device := range record.Devices {
			if device.UUID != uuid || !place.Overlaps(device.Form.Placement) {
				continue
			}
			claim := &corev1.ObjectReference{
				APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim",
				Namespace: record.Namespace, Name: record.Name, UID: types.UID(record.ClaimUID),
			}
			d.events.send(claim, kind, reason, sentence)
			break
		}
	}
}

// notifyReset sends an Event to the node about an attempted reset of a GPU without claims.
func (d *Driver) notifyReset(ctx context.Context, uuid string, worked bool, sentence string) {
	kind, reason := corev1.EventTypeNormal, ReasonReset
	if !worked {
		kind, reason = corev1.EventTypeWarning, ReasonNotReset
	}
	klog.FromContext(ctx).Info("A sick GPU", "gpu", uuid, "outcome", sentence)
	d.events.send(d.events.node(), kind, reason, "GPU "+uuid+" "+sentence)
}
