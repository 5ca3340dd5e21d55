package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/mps"
)

const (
	// daemonsInterval is how often the daemons are looked at without a change.
	daemonsInterval = time.Minute
	// daemonsRetry is for when the API server is away.
	daemonsRetry = 5 * time.Second
)

const reasonDaemonRestarted = "MPSDaemonRestarted"

// watchDaemons tells the pods whose MPS control daemon was restarted, which they
// cannot see otherwise: their next CUDA call fails.
func (d *Driver) watchDaemons(ctx context.Context) error {
	if d.daemons == nil {
		return nil
	}
	changes, err := d.daemons.Watch(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "MPS control daemons are only looked at from time to time", "every", daemonsInterval)
	}
	for {
		interval := daemonsInterval
		if err := d.announceRestarts(ctx); err != nil && ctx.Err() == nil {
			interval = daemonsRetry
			klog.FromContext(ctx).Error(err, "Pods could not be told that their MPS control daemon was restarted", "retryIn", interval)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changes:
		case <-time.After(interval):
		}
	}
}

func (d *Driver) announceRestarts(ctx context.Context) error {
	statuses, err := d.daemons.Statuses()
	if err != nil {
		return err
	}
	var failures []error
	for _, status := range statuses {
		if status.Restarts > 0 && !d.daemons.Announced(status) {
			failures = append(failures, d.announceRestart(ctx, status))
		}
	}
	return errors.Join(failures...)
}

func (d *Driver) announceRestart(ctx context.Context, status mps.Status) error {
	claims, err := d.clientsOf(ctx, status.Daemon.ID)
	if err != nil {
		return err
	}
	// Last, so that what cannot be told now is told later, and by one process only.
	first, err := d.daemons.Announce(status)
	if err != nil || !first {
		return err
	}
	for _, claim := range claims {
		for _, consumer := range claim.Status.ReservedFor {
			if consumer.APIGroup == "" && consumer.Resource == "pods" {
				d.events.warnPod(types.NamespacedName{Namespace: claim.Namespace, Name: consumer.Name}, consumer.UID, reasonDaemonRestarted,
					fmt.Sprintf("the MPS control daemon %s of claim %s has ended and is started again (restart %d): the CUDA contexts that containers had on its GPU are lost: restart the containers that use it",
						status.Daemon.ID, claim.Name, status.Restarts))
			}
		}
	}
	return nil
}

// clientsOf are the claims of this node that use the daemon.
func (d *Driver) clientsOf(ctx context.Context, daemon string) ([]*resourceapi.ResourceClaim, error) {
	records, err := d.preparer.Prepared(ctx)
	if err != nil {
		return nil, err
	}
	var claims []*resourceapi.ResourceClaim
	for _, record := range records {
		if !usesDaemon(record, daemon) {
			continue
		}
		claim, err := claimReader{d.Client, d.claimants.read}.Get(ctx, types.NamespacedName{Namespace: record.Namespace, Name: record.Name})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("read claim %s/%s, which uses MPS control daemon %s: %w", record.Namespace, record.Name, daemon, err)
		case claim.UID == types.UID(record.ClaimUID):
			claims = append(claims, claim)
		}
	}
	return claims, nil
}

func usesDaemon(record journal.Record, daemon string) bool {
	for _, device := range record.Devices {
		if device.MPS.Daemon == daemon {
			return true
		}
	}
	return false
}
