package offer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/podresources"
)

// Containers are those of this node.
type Containers interface {
	// Uses are the devices that containers have from device plugins.
	Uses(ctx context.Context) ([]podresources.Use, error)
}

// leftovers are the containers that still have GPUs of a device plugin that was removed. kubelet
// forgets its resource five minutes later, and lists the containers until they end. NVML would
// not do: it lists processes, and a container that holds a GPU and computes nothing has none.
type leftovers struct {
	// over is true when nothing is left. Nothing new comes before a device plugin is in the
	// node's status again.
	over bool
	// known is true once kubelet has answered since a device plugin was last in the status.
	known bool
	// plugin is when a device plugin was last in the node's status, zero for never.
	plugin time.Time
	// uses are by when they were first missed, zero for those that kubelet listed last.
	uses map[podresources.Use]time.Time
	// failure is why kubelet's last answer is missing.
	failure error
}

// leftoverSettle is for how long nothing must be left. A kubelet that restarts may list only
// some of its pods.
const leftoverSettle = lookInterval

// idle reports whether kubelet is not asked: nothing is left, or nothing was ever looked for.
func (l *leftovers) idle() bool { return l.over || !l.known && l.failure == nil && l.plugin.IsZero() }

// look asks kubelet, if it can have something to say.
func (l *leftovers) look(ctx context.Context, containers Containers, pluginHere bool, now time.Time) {
	if pluginHere {
		*l = leftovers{plugin: now}
		return
	}
	if l.over {
		return
	}
	listed, err := containers.Uses(ctx)
	if err != nil {
		if l.failure == nil || l.failure.Error() != err.Error() {
			klog.FromContext(ctx).Error(err, "kubelet does not say which containers have GPUs of a device plugin; what it said last holds")
		}
		l.failure = err
		return
	}
	l.known, l.failure = true, nil
	l.merge(listed, now)
	l.over = len(l.uses) == 0 && now.Sub(l.plugin) >= leftoverSettle
}

// merge forgets a use that was missed for long enough.
func (l *leftovers) merge(listed []podresources.Use, now time.Time) {
	uses := map[podresources.Use]time.Time{}
	for use, missed := range l.uses {
		if missed.IsZero() {
			missed = now
		}
		if now.Sub(missed) < leftoverSettle {
			uses[use] = missed
		}
	}
	for _, use := range listed {
		if isDevicePlugins(use.Resource) {
			uses[use] = time.Time{}
		}
	}
	l.uses = uses
}

// unsure is why it is not known what containers have; nil if it is.
func (l *leftovers) unsure(now time.Time) error {
	switch {
	case l.over || l.known && now.Sub(l.plugin) >= leftoverSettle:
		return nil
	case l.failure != nil:
		return fmt.Errorf("whether containers still have GPUs of a device plugin is not known, so Mica offers none: %w: mount kubelet's pod-resources directory, as the chart does, or set kubeletPlugin.ignoreDevicePlugin=true if no device plugin was there", l.failure)
	}
	return errors.New("a device plugin gave out this node's GPUs until a moment ago: Mica offers them as soon as kubelet has said which containers still have some")
}

// until is when to look again: kubelet has no word for that something has ended.
func (l *leftovers) until(earlier, now time.Time) time.Time {
	next := now.Add(leftoverSettle)
	if l.idle() || !earlier.IsZero() && earlier.Before(next) {
		return earlier
	}
	return next
}
