package diagnosis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/resource/v1beta1"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/prepare"
)

const (
	// pool is the self-test's own.
	pool = "selftest"
	// patience bounds each half of a try.
	patience = time.Minute
)

// Claims prepares claims as for kubelet, with the records and locks of the node's plugin. So the
// plugin does not use the GPU meanwhile, and undoes a killed self-test, whose claim is unknown
// to the API server.
type Claims interface {
	Held(ctx context.Context) ([]journal.Device, error)
	SetNode(node prepare.Node)
	Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]journal.Device, error)
	Unprepare(ctx context.Context, claim types.UID) error
}

// mutation prepares and unprepares claims on idle GPUs.
type mutation struct {
	Options
	hardware Hardware
	node     gpu.Node
}

func (m *mutation) run(ctx context.Context, r *Report) {
	idle, reasons := m.idle(ctx)
	if len(idle) == 0 {
		r.add("idle GPU", Failed, append(reasons, "nothing is changed: end the pods and processes that use the GPUs, and keep new ones away (kubectl cordon), then try again")...)
		return
	}
	shapes := gpu.Shapes(idle, gpu.ByDefault)
	m.Claims.SetNode(prepare.Node{Pool: prepare.NewPool(m.Driver, pool, shapes), Edits: m.hardware.Edits, Tools: m.hardware.Tools})
	whole := slices.IndexFunc(shapes, func(s gpu.Shape) bool { return s.Form().Base == gpu.BaseWhole })
	partition := smallestPartition(shapes)

	if partition == nil {
		r.add("partition", Skipped, "no GPU that is idle can be partitioned without a reset")
	} else {
		m.try(ctx, r, "partition", partition, nil)
	}
	if whole < 0 {
		r.add("time-slice", Skipped, "no GPU that is idle is offered whole")
		r.add("MPS", Skipped, "no GPU that is idle is offered whole")
		return
	}
	m.try(ctx, r, "time-slice", shapes[whole], &v1beta1.Sharing{
		Strategy: v1beta1.TimeSlicingStrategy, TimeSlicingConfig: &v1beta1.TimeSlicingConfig{Interval: ptr.To(string(gpu.ShortInterval))},
	})
	if m.hardware.Tools.Daemons == nil {
		r.add("MPS", Skipped, "this node runs no MPS supervisor (mps.enabled)")
		return
	}
	m.try(ctx, r, "MPS", shapes[whole], &v1beta1.Sharing{Strategy: v1beta1.MPSStrategy})
}

// smallestPartition has the least memory. It is nil if there is none.
func smallestPartition(shapes []gpu.Shape) gpu.Shape {
	var smallest gpu.Shape
	for _, shape := range shapes {
		if shape.Form().Base == gpu.BasePartition && (smallest == nil || shape.MemoryBytes() < smallest.MemoryBytes()) {
			smallest = shape
		}
	}
	return smallest
}

// idle returns the GPUs that no claim and no process uses and that have no MIG instances, and
// why the others are not idle.
func (m *mutation) idle(ctx context.Context) (idle []gpu.GPU, reasons []string) {
	held, err := m.Claims.Held(ctx)
	if err != nil {
		return nil, []string{err.Error()}
	}
	for _, g := range m.node.GPUs {
		processes, err := m.hardware.GPUs.Processes(g.UUID)
		switch {
		case err != nil:
			reasons = append(reasons, fmt.Sprintf("GPU %d: %v", g.Index, err))
		case slices.ContainsFunc(held, func(d journal.Device) bool { return d.On(g.UUID) }):
			reasons = append(reasons, fmt.Sprintf("a claim has GPU %d, or a part of it", g.Index))
		case len(processes) > 0:
			reasons = append(reasons, fmt.Sprintf("process %d uses GPU %d", processes[0], g.Index))
		case len(g.Instances) > 0:
			reasons = append(reasons, fmt.Sprintf("GPU %d has MIG instances that no claim has", g.Index))
		default:
			idle = append(idle, g)
		}
	}
	return idle, reasons
}

// try prepares a claim for a device, unprepares it, and compares the GPU with before.
func (m *mutation) try(ctx context.Context, r *Report, name string, shape gpu.Shape, sharing *v1beta1.Sharing) {
	claim, err := m.claim(name, shape, sharing)
	if err != nil {
		r.add(name, Failed, err.Error())
		return
	}
	made, failure := m.timed(ctx, func(ctx context.Context) error {
		_, err := m.Claims.Prepare(ctx, claim)
		return err
	})
	// It is undone also if the caller has gone.
	unmade, undo := m.timed(context.WithoutCancel(ctx), func(ctx context.Context) error { return m.Claims.Unprepare(ctx, claim.UID) })
	if undo != nil {
		undo = fmt.Errorf("%w: the node's plugin undoes what is left, because it does not know the claim", undo)
	}
	switch err := errors.Join(undo, m.compare(shape.Physical())); {
	case err != nil:
		r.add(name, Failed, strings.Split(errors.Join(failure, err).Error(), "\n")...)
	case errors.Is(failure, errors.ErrUnsupported):
		r.add(name, Skipped, failure.Error())
	case failure != nil:
		r.add(name, Failed, failure.Error())
	default:
		r.add(name, OK, fmt.Sprintf("%s was prepared in %s and unprepared in %s", shape.Name(), made, unmade))
	}
}

func (m *mutation) timed(ctx context.Context, do func(context.Context) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	start := time.Now()
	err := do(ctx)
	return time.Since(start).Round(100 * time.Microsecond), err
}

// compare returns an error if the GPU is not divided as before.
func (m *mutation) compare(before gpu.GPU) error {
	node, _, err := m.hardware.GPUs.Discover()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(node.GPUs, func(g gpu.GPU) bool { return g.UUID == before.UUID })
	switch {
	case i < 0:
		return fmt.Errorf("GPU %d cannot be read any more: look at the kernel's log for messages of NVRM", before.Index)
	case node.GPUs[i].MIG != before.MIG:
		return fmt.Errorf("MIG of GPU %d was %s and is %s: set it back (nvidia-smi -i %d -mig)", before.Index, migModes[before.MIG], migModes[node.GPUs[i].MIG], before.Index)
	case len(node.GPUs[i].Instances) > 0:
		return fmt.Errorf("GPU %d has MIG instances that it did not have before: look at nvidia-smi mig -i %d -lgi", before.Index, before.Index)
	}
	return nil
}

// claim is as the scheduler would have allocated it.
func (m *mutation) claim(name string, shape gpu.Shape, sharing *v1beta1.Sharing) (*resourceapi.ResourceClaim, error) {
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "mica-selftest", Name: "mica-selftest", UID: uuid.NewUUID()},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: m.Driver, Pool: pool, Device: shape.Name()}},
		}}},
	}
	if sharing == nil {
		return claim, nil
	}
	config := v1beta1.GPUConfig{TypeMeta: metav1.TypeMeta{APIVersion: v1beta1.APIVersion, Kind: v1beta1.GPUConfigKind}, Sharing: sharing}
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encode the configuration of the %s: %w", name, err)
	}
	claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
		Source: resourceapi.AllocationConfigSourceClaim,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: m.Driver, Parameters: runtime.RawExtension{Raw: raw},
		}},
	}}
	return claim, nil
}
