// Package keda serves KEDA's external scaler: it tells KEDA what only the device side knows,
// how many claims wait, how many devices are free, how busy exactly the devices are that a
// workload holds. It never reports a value that asks for replicas for which there cannot be
// devices, never takes a loading model for an idle one, and answers with an error in words, not
// with 0, where it does not know.
package keda

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// Workloads knows what pods hold and wait for: package workload.
type Workloads interface {
	// Workload is an error where there is none of that name.
	Workload(ctx context.Context, ref workload.Ref) (workload.State, error)
	// Pending counts claims.
	Pending(ctx context.Context, of workload.Pending) (int, error)
	// Watch gives the count at once and when it has changed, until ctx ends. A reader that is
	// slow misses counts, never the last one. The channel is nil where only asking again tells.
	Watch(ctx context.Context, of workload.Pending) (<-chan int, error)
}

// Usages knows how busy devices are: package usage.
type Usages interface {
	// Usage is an error where a device does not tell, and where what it told is too old.
	Usage(ctx context.Context, of workload.State) (usage.Usage, error)
}

// Forecast knows for how many more pods there is room: package forecast.
type Forecast interface {
	// Supply waits for the first plan that has the replica, until ctx ends. A ctx that has ended
	// has the replica planned for who asks next.
	Supply(ctx context.Context, replica scaleout.Replica) (scaleout.Supply, error)
	// Blocked tells of a pending pod that the last plan found no room for.
	Blocked(pod types.UID) bool
	// Known tells whether the last plan had the pod, on a node or pending. What a pod takes
	// that it had not is still in the supplies.
	Known(pod types.UID) bool
}

// Gates lets loaded pods serve: package standby.
type Gates interface {
	// Serve has the readiness gates of so many of the target's pods open, as far as that many are
	// loaded. It waits for nothing. by is who asks.
	Serve(ctx context.Context, target *workload.State, count int, by string)
}

// Costs hears which workloads are scaled, to say which of their replicas goes first: package
// deletioncost.
type Costs interface {
	// Scaled waits for nothing.
	Scaled(workload.Ref)
}

// Prometheus answers queries. A query that gives no number is an error.
type Prometheus interface {
	// Query is ErrNoData where the query matches nothing. The namespace is that of the trigger, or
	// empty: queries of others do not wait for those of one namespace.
	Query(ctx context.Context, namespace, query string) (float64, error)
}

// Profiles have the thresholds for kinds of workloads: package profile.
type Profiles interface {
	// Get is an error where there is none of that name.
	Get(name string) (profile.Profile, error)
	// Names are all that there are.
	Names() []string
	// Changed gives a channel that is closed once Get gives something else.
	Changed() <-chan struct{}
}
