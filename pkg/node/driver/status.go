package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	resourceapply "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/wake"
)

const (
	// maxReports bounds pending reports.
	maxReports = 256
	// reportAttempts, with reportRetries between them, outlast a restart of the API server.
	reportAttempts    = 8
	reportCallTimeout = 10 * time.Second
)

var reportRetries = wait.Backoff{Duration: time.Second, Factor: 2, Cap: time.Minute, Steps: math.MaxInt}

// reporter writes the UUIDs of partitions into the status of claims (KEP-4817); they are unknown
// before Prepare. The status is informational: nothing waits for it, and failures are eventually
// dropped.
type reporter struct {
	client kubernetes.Interface
	driver string

	mu      sync.Mutex
	pending map[types.UID]*report
	changed wake.Signal // holds a token when there is something new to write
}

// report is a claim's status to write.
type report struct {
	claim    types.NamespacedName
	devices  []journal.Device
	attempts int
}

func newReporter(client kubernetes.Interface, driver string) *reporter {
	return &reporter{client: client, driver: driver, pending: map[types.UID]*report{}, changed: wake.New()}
}

// add is called for every prepared claim and never blocks. Claims without a partition cost no request:
// a whole GPU's UUID is in its slice.
func (r *reporter) add(claim types.NamespacedName, uid types.UID, devices []journal.Device) {
	if !slices.ContainsFunc(devices, func(d journal.Device) bool { return d.DeviceUUID() != d.UUID }) {
		return
	}
	r.mu.Lock()
	if len(r.pending) < maxReports {
		r.pending[uid] = &report{claim: claim, devices: devices}
	}
	r.mu.Unlock()
	r.changed.Wake()
}

// forget drops pending reports of a claim that is no longer prepared.
func (r *reporter) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, uid)
}

// run writes reports until ctx ends.
func (r *reporter) run(ctx context.Context) error {
	retry := reportRetries.DelayFunc()
	for {
		var again <-chan time.Time
		if r.writeAll(ctx) {
			retry = reportRetries.DelayFunc()
		} else {
			again = time.After(retry())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.changed:
		case <-again:
		}
	}
}

// writeAll tries every pending report once, and reports whether none is left.
func (r *reporter) writeAll(ctx context.Context) (done bool) {
	r.mu.Lock()
	batch := maps.Clone(r.pending)
	r.mu.Unlock()
	done = true
	for uid, pending := range batch {
		err := r.write(ctx, uid, *pending)
		pending.attempts++
		if err != nil && pending.attempts < reportAttempts && !givenUp(err) {
			done = false
			continue
		}
		if err != nil && !apierrors.IsNotFound(err) {
			klog.FromContext(ctx).Error(err, "Cannot write a partition's UUID into the claim's status", "claim", klog.KRef(pending.claim.Namespace, pending.claim.Name))
		}
		r.mu.Lock()
		if r.pending[uid] == pending { // not prepared anew meanwhile
			delete(r.pending, uid)
		}
		r.mu.Unlock()
	}
	return done
}

// givenUp reports whether a retry is pointless: the claim is gone or replaced, or the plugin lacks the
// right.
func givenUp(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
}

// write applies this driver's entries of status.devices. The UID protects a new claim of the same
// name.
func (r *reporter) write(ctx context.Context, uid types.UID, pending report) error {
	status := resourceapply.ResourceClaimStatus()
	seen := map[string]bool{}
	for _, device := range pending.devices {
		key := device.Device + "/" + device.ShareID
		if seen[key] {
			continue // two requests have it; the API lists it once
		}
		seen[key] = true
		entry, err := r.entry(device)
		if err != nil {
			return err
		}
		status.WithDevices(entry)
	}
	claim := resourceapply.ResourceClaim(pending.claim.Name, pending.claim.Namespace).WithUID(uid).WithStatus(status)
	ctx, cancel := context.WithTimeout(ctx, reportCallTimeout)
	defer cancel()
	_, err := r.client.ResourceV1().ResourceClaims(pending.claim.Namespace).ApplyStatus(ctx, claim, metav1.ApplyOptions{FieldManager: "mica-" + r.driver, Force: true})
	return err
}

// deviceData is status.devices[].data of a claim.
type deviceData struct {
	// UUID is the device's for NVIDIA's tools and CUDA.
	UUID string `json:"uuid"`
	// ParentUUID is the UUID of a partition's GPU.
	ParentUUID string `json:"parentUUID,omitempty"`
}

func (r *reporter) entry(device journal.Device) (*resourceapply.AllocatedDeviceStatusApplyConfiguration, error) {
	data := deviceData{UUID: device.DeviceUUID()}
	if data.UUID != device.UUID {
		data.ParentUUID = device.UUID
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return nil, fmt.Errorf("encode the status of device %s: %w", device.Device, err)
	}
	entry := resourceapply.AllocatedDeviceStatus().
		WithDriver(r.driver).WithPool(device.Pool).WithDevice(device.Device).WithData(runtime.RawExtension{Raw: raw})
	if device.ShareID != "" {
		entry.WithShareID(device.ShareID)
	}
	return entry, nil
}

// reportAll repeats reports that a former process may not have written.
func (d *Driver) reportAll(ctx context.Context) {
	records, err := d.preparer.Prepared(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot check the status of claims with partitions")
		return
	}
	for _, record := range records {
		d.reporter.add(types.NamespacedName{Namespace: record.Namespace, Name: record.Name}, types.UID(record.ClaimUID), record.Devices)
	}
}
