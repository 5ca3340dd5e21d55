package offer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/podresources"
	"github.com/mica-gpu/mica/pkg/slice"
)

// ReasonTaken is the reason of the Event on a node with GPUs in use without a claim of this version.
const ReasonTaken = "GPUsInUse"

// taken is a part of a GPU in use without a claim that this version can release.
type taken struct {
	// gpu is the UUID, empty if it may be any of the node's.
	gpu   string
	place gpu.Placement
	by    string
}

// takenOf lists the parts of a node's GPUs that leftovers, or claims of a newer version, hold.
func (o *Offer) takenOf(node gpu.Node, held []journal.Device) (all []taken) {
	for use := range o.leftovers.uses {
		all = append(all, takenBy(use, node.GPUs))
	}
	for _, device := range held {
		if device.Newer {
			all = append(all, taken{device.UUID, device.Form.Placement, "a claim that a newer version of the plugin prepared"})
		}
	}
	slices.SortFunc(all, func(a, b taken) int { return cmp.Or(cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.by, b.by)) })
	return slices.Compact(all)
}

// takenBy finds the device of a device plugin's ID. NVIDIA's is the UUID of a GPU or MIG device, with
// "::" and a number for a replica. Any other may be any GPU.
func takenBy(use podresources.Use, gpus []gpu.GPU) taken {
	id, _, _ := strings.Cut(use.Device, "::")
	by := fmt.Sprintf("pod %s from a device plugin", use.Pod)
	for _, g := range gpus {
		if g.UUID == id {
			return taken{gpu: g.UUID, by: by}
		}
		for _, instance := range g.Instances {
			if slices.ContainsFunc(instance.Devices, func(d gpu.MIGDevice) bool { return d.UUID == id }) {
				return taken{g.UUID, gpu.Placement{Start: instance.Start, Size: instance.Size}, by}
			}
		}
	}
	return taken{by: fmt.Sprintf("%s (device %q)", by, use.Device)}
}

func (t taken) overlaps(shape gpu.Shape) bool {
	return (t.gpu == "" || t.gpu == shape.Physical().UUID) && t.place.Overlaps(shape.Form().Placement)
}

// withoutTaken drops taken shapes. Those that claims hold too stay, with a taint that keeps further
// claims from their shares.
func withoutTaken(next desired, all []taken, held []journal.Device) desired {
	if len(all) == 0 {
		return next
	}
	var shapes []gpu.Shape
	for _, shape := range next.shapes {
		if !slices.ContainsFunc(all, func(t taken) bool { return t.overlaps(shape) }) {
			shapes = append(shapes, shape)
			continue
		}
		if slices.ContainsFunc(held, func(d journal.Device) bool {
			return !d.Newer && d.UUID == shape.Physical().UUID && d.Device == shape.Name()
		}) {
			next.taints.Add(shape.Name(), slice.InUse())
			shapes = append(shapes, shape)
		}
	}
	next.shapes = shapes
	return next
}

// takenShown keeps the message short.
const takenShown = 8

// describeTaken returns a sentence about the GPUs in use and their users, empty if there are none.
func describeTaken(gpus []gpu.GPU, all []taken) string {
	if len(all) == 0 {
		return ""
	}
	names := map[string]string{"": "a GPU that is not known"}
	for _, g := range gpus {
		names[g.UUID] = fmt.Sprintf("gpu-%d", g.Minor)
	}
	var texts []string
	for _, t := range all[:min(len(all), takenShown)] {
		texts = append(texts, fmt.Sprintf("%s by %s", cmp.Or(names[t.gpu], t.gpu), t.by))
	}
	if more := len(all) - takenShown; more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}
	return "GPUs of this node are in use without a claim of Mica's (" + strings.Join(texts, ", ") + "), so Mica does not offer them until they are free: drain the node, or end these pods; what a newer version prepared ends with that version"
}

// allTaken returns why no GPU is left to offer, or nil.
func (o *Offer) allTaken(found findings) error {
	all := o.takenOf(found.node, found.held)
	if len(all) == 0 {
		return nil
	}
	for _, g := range found.node.GPUs {
		if !slices.ContainsFunc(all, func(t taken) bool { return (t.gpu == "" || t.gpu == g.UUID) && t.place.Entire() }) {
			return nil
		}
	}
	return errors.New(describeTaken(found.node.GPUs, all))
}

// reportTaken logs and sends an Event once when the GPUs in use change.
func (o *Offer) reportTaken(ctx context.Context, text string) {
	if text == o.reportedTaken {
		return
	}
	o.reportedTaken = text
	if text == "" {
		klog.FromContext(ctx).Info("Only claims use this node's GPUs now")
		return
	}
	klog.FromContext(ctx).Info("GPUs are not offered because they are in use", "why", text)
	o.Events.WarnNode(ReasonTaken, text)
}

// lookForLeftovers returns why nothing may be offered until more is known, or nil.
func (o *Offer) lookForLeftovers(ctx context.Context, cluster *corev1.Node) error {
	if o.Containers == nil || o.IgnoreDevicePlugin {
		return nil
	}
	now := time.Now()
	o.leftovers.look(ctx, o.Containers, cluster != nil && len(devicePluginHas(cluster)) > 0, now)
	return o.leftovers.unsure(now)
}
