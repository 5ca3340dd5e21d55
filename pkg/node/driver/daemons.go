package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/mps"
	"github.com/mica-gpu/mica/pkg/node/prepare"
)

// daemonsInterval is how often the status of MPS control daemons is read.
const daemonsInterval = 5 * time.Second

const reasonDaemonRestarted = "MPSDaemonRestarted"

// watchDaemons sends Events to pods whose MPS control daemon was restarted; otherwise they only see a
// failing CUDA call.
func (d *Driver) watchDaemons(ctx context.Context) error {
	if d.daemons == nil {
		return nil
	}
	return wait.PollUntilContextCancel(ctx, daemonsInterval, true, func(ctx context.Context) (bool, error) {
		if err := d.announceRestarts(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot send Events about restarted MPS control daemons", "retryIn", daemonsInterval)
		}
		return false, nil
	})
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
	// The Events come last: without a record, each look would send them again.
	if err := d.daemons.SetAnnounced(status); err != nil {
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

// clientsOf lists this node's claims that use the daemon.
func (d *Driver) clientsOf(ctx context.Context, daemon string) ([]*resourceapi.ResourceClaim, error) {
	records, err := d.preparer.Prepared(ctx)
	if err != nil {
		return nil, err
	}
	var claims []*resourceapi.ResourceClaim
	for _, record := range records {
		if !slices.ContainsFunc(record.Devices, func(device journal.Device) bool { return prepare.Uses(device, daemon) }) {
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
