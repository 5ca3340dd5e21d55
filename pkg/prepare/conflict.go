package prepare

import (
	"context"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/journal"
)

// releasePoll is how often the journal is looked at while another claim still
// holds a GPU.
const releasePoll = 50 * time.Millisecond

// takeOverLimit bounds the release of a claim that is gone.
const takeOverLimit = 5 * time.Second

// hold locks the plan's GPUs and makes sure that no other claim holds one of
// them. The driver is the last line of defence against two workloads on one
// exclusive GPU: a pod that was deleted by force can leave the API server
// before kubelet has stopped its containers (kubernetes/kubernetes#141471).
func (p *Preparer) hold(ctx context.Context, plan Plan) (release func(), err error) {
	uuids := plan.Exclusive()
	if len(uuids) == 0 {
		return func() {}, nil // admin access changes nothing, so it excludes nobody
	}
	keys := make([]string, len(uuids))
	for i, uuid := range uuids {
		keys[i] = "gpu-" + uuid
	}
	unlock, err := p.Locks.Lock(ctx, keys...)
	if err != nil {
		return nil, fmt.Errorf("claim %s: %w", plan.Claim, err)
	}
	if err := p.awaitRelease(ctx, plan, uuids); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// awaitRelease gives kubelet time to unprepare the other claim. When the time
// is up and the API server confirms that the other claim no longer has the
// GPU, kubelet has lost track of it, and it is released here.
func (p *Preparer) awaitRelease(ctx context.Context, plan Plan, uuids []string) error {
	var holder *journal.Record
	free := func(context.Context) (bool, error) {
		var err error
		holder, err = p.holder(ctx, plan.Claim.UID, uuids)
		return holder == nil, err
	}
	err := wait.PollUntilContextTimeout(ctx, releasePoll, p.ReleaseWait, true, free)
	if holder == nil {
		return err
	}
	stale, err := p.stale(ctx, *holder)
	if err != nil {
		return fmt.Errorf("claim %s needs a GPU that claim %s/%s held, and whether that claim still exists is not known: %w", plan.Claim, holder.Namespace, holder.Name, err)
	}
	if !stale {
		return fmt.Errorf("claim %s was given a GPU (%v) that claim %s/%s (UID %s) still holds on this node: delete one of the two pods", plan.Claim, uuids, holder.Namespace, holder.Name, holder.ClaimUID)
	}
	klog.FromContext(ctx).Info("Releasing a claim that is gone and that kubelet did not unprepare", "claim", klog.KRef(holder.Namespace, holder.Name), "uid", holder.ClaimUID)
	// Bounded, because the other claim may be waiting for one of our GPUs.
	unprepare, cancel := context.WithTimeout(ctx, takeOverLimit)
	defer cancel()
	if err := p.Unprepare(unprepare, types.UID(holder.ClaimUID)); err != nil {
		return err
	}
	return p.awaitRelease(ctx, plan, uuids)
}

// holder finds another claim's record that holds one of the GPUs.
func (p *Preparer) holder(ctx context.Context, claim types.UID, uuids []string) (*journal.Record, error) {
	records, err := p.records(ctx)
	if err != nil {
		return nil, err
	}
	for _, record := range records {
		if record.ClaimUID == string(claim) || !p.current(record) {
			continue
		}
		for _, device := range record.Devices {
			if !device.AdminAccess && slices.Contains(uuids, device.UUID) {
				return &record, nil
			}
		}
	}
	return nil, nil //nolint:nilnil // no holder is an answer
}

// stale tells whether a record's claim no longer exists or no longer has the
// recorded devices. Only the API server's own word counts.
func (p *Preparer) stale(ctx context.Context, record journal.Record) (bool, error) {
	claim, err := p.claimOf(ctx, record)
	if err != nil {
		return false, err
	}
	return claim == nil || !p.recordsAllocation(record, claim), nil
}

// claimOf reads the claim of a record, nil when it is gone or another claim
// has taken its name.
func (p *Preparer) claimOf(ctx context.Context, record journal.Record) (*resourceapi.ResourceClaim, error) {
	claim, err := p.Claims.Get(ctx, types.NamespacedName{Namespace: record.Namespace, Name: record.Name})
	if apierrors.IsNotFound(err) || err == nil && string(claim.UID) != record.ClaimUID {
		return nil, nil //nolint:nilnil // gone is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("read claim %s/%s: %w", record.Namespace, record.Name, err)
	}
	return claim, nil
}
