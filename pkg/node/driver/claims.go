package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/tracing"
)

// callBudget is below kubelet's 45 s, so that a claim fails with Mica's error and not with an exceeded
// deadline.
const callBudget = 40 * time.Second

// PrepareResourceClaims implements kubeletplugin.DRAPlugin. It prepares claims in parallel, each with
// its own error.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := each(ctx, claims, func(c *resourceapi.ResourceClaim) types.UID { return c.UID }, d.prepareClaim)
	d.counted.Wake()
	return results, nil
}

func (d *Driver) prepareClaim(ctx context.Context, claim *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	start := time.Now()
	ctx, span := beginClaim(ctx, "prepare claim", claim.Namespace, claim.Name, claim.UID)
	devices, err := d.preparer.Prepare(ctx, claim)
	span.Count("mica.devices", len(devices))
	span.End(err)
	observeOperation("prepare", err, time.Since(start))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot prepare a claim", "claim", klog.KObj(claim))
		return kubeletplugin.PrepareResult{Err: err}
	}
	d.claimants.read(claim)
	d.reporter.add(types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, claim.UID, devices)
	return kubeletplugin.PrepareResult{Devices: forKubelet(devices)}
}

func forKubelet(devices []journal.Device) []kubeletplugin.Device {
	prepared := make([]kubeletplugin.Device, len(devices))
	for i, device := range devices {
		prepared[i] = kubeletplugin.Device{
			Requests:     []string{device.Request},
			PoolName:     device.Pool,
			DeviceName:   device.Device,
			CDIDeviceIDs: device.CDIDeviceIDs,
		}
		if device.ShareID != "" {
			shareID := types.UID(device.ShareID)
			prepared[i].ShareID = &shareID
		}
	}
	return prepared
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin. It unprepares claims in parallel: one
// whose partition is still in use delays no other.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := each(ctx, claims, func(c kubeletplugin.NamespacedObject) types.UID { return c.UID }, d.unprepareClaim)
	d.counted.Wake()
	d.offer.Released()
	d.monitor.Released()
	return results, nil
}

func (d *Driver) unprepareClaim(ctx context.Context, claim kubeletplugin.NamespacedObject) error {
	start := time.Now()
	d.reporter.forget(claim.UID)
	ctx, span := beginClaim(ctx, "unprepare claim", claim.Namespace, claim.Name, claim.UID)
	err := d.preparer.Unprepare(ctx, claim.UID)
	span.End(err)
	observeOperation("unprepare", err, time.Since(start))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot unprepare a claim", "claim", klog.KRef(claim.Namespace, claim.Name))
	}
	return err
}

// beginClaim starts the tracing span of an operation on a claim.
func beginClaim(ctx context.Context, operation, namespace, name string, uid types.UID) (context.Context, tracing.Span) {
	ctx, span := tracing.Begin(ctx, operation)
	span.Set("k8s.namespace.name", namespace)
	span.Set("k8s.resourceclaim.name", name)
	span.Set("k8s.resourceclaim.uid", string(uid))
	return ctx, span
}

// each calls a function for all claims of a call, in parallel and within callBudget.
func each[Claim, Result any](ctx context.Context, claims []Claim, uid func(Claim) types.UID, do func(context.Context, Claim) Result) map[types.UID]Result {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	results := make(map[types.UID]Result, len(claims))
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, claim := range claims {
		group.Go(func() {
			result := do(ctx, claim)
			mu.Lock()
			defer mu.Unlock()
			results[uid(claim)] = result
		})
	}
	group.Wait()
	return results
}

// HandleError implements kubeletplugin.DRAPlugin. A server that cannot serve ends the process, and
// kubelet restarts it.
func (d *Driver) HandleError(ctx context.Context, err error, msg string) {
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		klog.FromContext(ctx).Error(err, "Background work failed; retrying", "what", msg)
		return
	}
	select {
	case d.failed <- fmt.Errorf("%s: %w", msg, err):
	default: // the first reason ends the process
	}
}

// claimReader reads claims from the API server and passes each on.
type claimReader struct {
	client kubernetes.Interface
	read   func(*resourceapi.ResourceClaim)
}

// Get implements prepare.Claims.
func (r claimReader) Get(ctx context.Context, name types.NamespacedName) (*resourceapi.ResourceClaim, error) {
	claim, err := r.client.ResourceV1().ResourceClaims(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	r.read(claim)
	return claim, nil
}
