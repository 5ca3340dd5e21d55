// Package keda serves KEDA's external scaler with figures about devices: how many claims wait, how
// busy a workload's devices are, how many replicas there can be devices for. It never asks for
// replicas without devices, never takes a loading model for an idle one, and returns an error, not 0,
// for what it does not know.
package keda

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// Workloads reports which devices pods hold and wait for: package workload.
type Workloads interface {
	// Workload returns an error if the workload does not exist.
	Workload(ctx context.Context, ref workload.Ref) (workload.State, error)
	// Pending counts claims.
	Pending(ctx context.Context, of workload.Pending) (int, error)
	// Watch sends the count at once and after changes, until ctx ends. A slow reader misses counts, but
	// never the last one. The channel is nil if changes cannot be observed.
	Watch(ctx context.Context, of workload.Pending) (<-chan int, error)
}

// Usages reports how busy devices are: package usage.
type Usages interface {
	// Usage returns an error if a device reports nothing, or its report is too old.
	Usage(ctx context.Context, of workload.State) (usage.Usage, error)
}

// Forecast reports for how many more pods there is room: package forecast.
type Forecast interface {
	// Supply waits for the first plan with the replica, until ctx ends. With an ended ctx, it only
	// registers the replica for the next plan.
	Supply(ctx context.Context, replica scaleout.Replica) (scaleout.Supply, error)
	// Blocked reports whether the last plan found no room for a pending pod.
	Blocked(pod types.UID) bool
	// Known reports whether the last plan included the pod, on a node or pending. Supplies do not account
	// for devices of pods that it lacks.
	Known(pod types.UID) bool
}

// Gates lets loaded pods serve: package standby.
type Gates interface {
	// Serve opens readiness gates until count pods of the target serve, as far as they are loaded. It does
	// not block. by names the ScaledObject.
	Serve(ctx context.Context, target *workload.State, count int, by string)
}

// Costs learns which workloads are scaled: package deletioncost.
type Costs interface {
	// Scaled does not block.
	Scaled(workload.Ref)
}

// Prometheus answers queries for one number.
type Prometheus interface {
	// Query returns ErrNoData if the query matches nothing. The namespace is that of the trigger; each
	// namespace has slots of its own.
	Query(ctx context.Context, namespace, query string) (float64, error)
}

// Profiles returns thresholds by kind of workload: package profile.
type Profiles interface {
	// Get returns an error if the profile does not exist.
	Get(name string) (profile.Profile, error)
	// Names lists all profiles.
	Names() []string
	// Changed returns a channel that is closed once profiles change.
	Changed() <-chan struct{}
}
