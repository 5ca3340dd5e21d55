package offer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/podresources"
)

// Containers lists containers of this node.
type Containers interface {
	// Uses lists the devices that containers hold from device plugins.
	Uses(ctx context.Context) ([]podresources.Use, error)
}

// leftovers are containers that still hold GPUs of a removed device plugin. kubelet drops its resource
// after five minutes, but lists the containers until they end. NVML is no substitute: it lists
// processes, and a container may hold a GPU without computing.
type leftovers struct {
	// over: no such container is left. New ones appear only after a device plugin is in the node's status
	// again.
	over bool
	// known: kubelet has answered since a device plugin was last in the status.
	known bool
	// plugin is when a device plugin was last in the node's status, zero for never.
	plugin time.Time
	// uses are by the time when kubelet first stopped listing them, zero if it lists them.
	uses map[podresources.Use]time.Time
	// failure is the error of the last request to kubelet.
	failure error
}

// leftoverSettle is how long no container may hold a device. A restarting kubelet may list only some
// of its pods.
const leftoverSettle = lookInterval

// idle reports whether kubelet need not be asked.
func (l *leftovers) idle() bool { return l.over || !l.known && l.failure == nil && l.plugin.IsZero() }

// look asks kubelet unless idle.
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
			klog.FromContext(ctx).Error(err, "Cannot list containers with GPUs of a device plugin; using kubelet's last answer")
		}
		l.failure = err
		return
	}
	l.known, l.failure = true, nil
	l.merge(listed, now)
	l.over = len(l.uses) == 0 && now.Sub(l.plugin) >= leftoverSettle
}

// merge drops uses that kubelet has not listed for leftoverSettle.
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

// unsure returns why it is unknown what containers hold, or nil.
func (l *leftovers) unsure(now time.Time) error {
	switch {
	case l.over || l.known && now.Sub(l.plugin) >= leftoverSettle:
		return nil
	case l.failure != nil:
		return fmt.Errorf("cannot find out whether containers still hold GPUs of a device plugin, so Mica offers none: %w: mount kubelet's pod-resources directory, as the chart does, or set kubeletPlugin.ignoreDevicePlugin=true if no device plugin was there", l.failure)
	}
	return errors.New("a device plugin allocated this node's GPUs until now: Mica offers them once kubelet has listed the containers that still hold some")
}

// until is when to ask again: kubelet does not report the end of containers.
func (l *leftovers) until(earlier, now time.Time) time.Time {
	next := now.Add(leftoverSettle)
	if l.idle() || !earlier.IsZero() && earlier.Before(next) {
		return earlier
	}
	return next
}
