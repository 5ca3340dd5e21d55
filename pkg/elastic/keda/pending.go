package keda

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// pendingClaims counts claims that wait for devices.
type pendingClaims struct{ of workload.Pending }

func readPending(f fields, namespace string, target *workload.Ref) (metric, error) {
	m := pendingClaims{of: workload.Pending{Namespace: namespace, Class: f[keyDeviceClass]}}
	text, named := f[keyWorkload]
	switch {
	case named && m.of.Class != "":
		return nil, fmt.Errorf("%s and %s exclude each other: remove one of them", keyWorkload, keyDeviceClass)
	case m.of.Class != "":
		if len(validation.IsDNS1123Subdomain(m.of.Class)) > 0 {
			return nil, fmt.Errorf("%s %s cannot be the name of a DeviceClass: write one such as gpu.nvidia.com", keyDeviceClass, quoted(m.of.Class))
		}
	case named:
		ref, err := reference(keyWorkload, namespace, text)
		if err != nil {
			return nil, err
		}
		m.of.Workload = ref
	case target != nil:
		m.of.Workload = target
	default:
		return nil, fmt.Errorf("metric pendingClaims needs %s, %s or %s: add one of them", keyWorkload, keyDeviceClass, keyTarget)
	}
	return m, nil
}

func (m pendingClaims) value(ctx context.Context, from *Sources, _ *workload.State) (float64, error) {
	n, err := from.Workloads.Pending(ctx, m.of)
	return float64(n), err
}

func (m pendingClaims) changes(ctx context.Context, from *Sources) (<-chan int, error) {
	return from.Workloads.Watch(ctx, m.of)
}
