package driver

import (
	"context"
	"encoding/json"
	"fmt"
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
)

const (
	// maxReports bounds the memory for reports that the API server does not take.
	maxReports = 256
	// reportAttempts outlast, with reportRetries between them, a restart of the API
	// server.
	reportAttempts    = 8
	reportCallTimeout = 10 * time.Second
)

var reportRetries = wait.Backoff{Duration: time.Second, Factor: 2, Cap: time.Minute, Steps: math.MaxInt}

// reporter writes into claims which partition they were given (KEP-4817): its
// UUID is not known before. It is for whoever reads; nothing waits for it, and
// what cannot be written for long is given up.
type reporter struct {
	client kubernetes.Interface
	driver string

	mu      sync.Mutex
	pending map[types.UID]*report
	changed chan struct{} // holds a token when there is something new to write
}

// report is what a claim's status is to say.
type report struct {
	claim    types.NamespacedName
	devices  []journal.Device
	attempts int
}

func newReporter(client kubernetes.Interface, driver string) *reporter {
	return &reporter{client: client, driver: driver, pending: map[types.UID]*report{}, changed: make(chan struct{}, 1)}
}

// add is called for every prepared claim and never blocks. A whole GPU's UUID is
// in its slice already, so claims without a partition cost no request.
func (r *reporter) add(claim types.NamespacedName, uid types.UID, devices []journal.Device) {
	if !slices.ContainsFunc(devices, func(d journal.Device) bool { return d.DeviceUUID() != d.UUID }) {
		return
	}
	r.mu.Lock()
	if len(r.pending) < maxReports {
		r.pending[uid] = &report{claim: claim, devices: devices}
	}
	r.mu.Unlock()
	r.wake()
}

// forget drops what was not yet written of a claim that is not prepared any more.
func (r *reporter) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, uid)
}

func (r *reporter) wake() {
	select {
	case r.changed <- struct{}{}:
	default: // a wake-up is due already
	}
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

// writeAll tries everything pending once and tells whether nothing is left.
func (r *reporter) writeAll(ctx context.Context) (done bool) {
	r.mu.Lock()
	batch := make(map[types.UID]*report, len(r.pending))
	for uid, pending := range r.pending {
		batch[uid] = pending
	}
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
			klog.FromContext(ctx).Error(err, "A claim's status does not tell which partition it has", "claim", klog.KRef(pending.claim.Namespace, pending.claim.Name))
		}
		r.mu.Lock()
		if r.pending[uid] == pending { // not prepared anew meanwhile
			delete(r.pending, uid)
		}
		r.mu.Unlock()
	}
	return done
}

// givenUp are answers that will not change: the claim is gone or another, or
// this plugin may not write.
func givenUp(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
}

// write applies our entries of status.devices. The UID keeps them off another
// claim of that name.
func (r *reporter) write(ctx context.Context, uid types.UID, pending report) error {
	status := resourceapply.ResourceClaimStatus()
	seen := map[string]bool{}
	for _, device := range pending.devices {
		key := device.Device + "/" + device.ShareID
		if seen[key] {
			continue // given to two requests; the API knows it once
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
	// UUID is what NVIDIA's tools and CUDA call the device.
	UUID string `json:"uuid"`
	// ParentUUID is the GPU's that a partition is part of.
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

// reportAll writes again what a process that has ended may not have got around to.
func (d *Driver) reportAll(ctx context.Context) {
	records, err := d.preparer.Prepared(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The status of claims with partitions cannot be made sure of")
		return
	}
	for _, record := range records {
		d.reporter.add(types.NamespacedName{Namespace: record.Namespace, Name: record.Name}, types.UID(record.ClaimUID), record.Devices)
	}
}
