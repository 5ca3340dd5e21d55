package keda

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/mica-gpu/mica/api/externalscaler"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// Sources are what knows the figures.
type Sources struct {
	Workloads Workloads
	Usages    Usages
	Forecast  Forecast
	// Prometheus is nil where there is none to ask.
	Prometheus Prometheus
}

// ScalerOptions are what a Scaler is made of.
type ScalerOptions struct {
	Sources
	Profiles Profiles
	// Recorder writes Events on targets.
	Recorder events.EventRecorder
	Clock    clock.WithTicker
	// Poll is how often a stream of activity looks at what does not tell of its changes; 0: 5 s.
	Poll time.Duration
}

// Scaler answers what KEDA asks of triggers.
type Scaler struct {
	ScalerOptions
	capEvents *capEvents

	mu sync.Mutex
	// known are triggers that were read, or why they could not be, by what they say: KEDA sends
	// a trigger with each question. They hold until stale is closed.
	known *lru.Cache
	stale <-chan struct{}
}

// remembered is of how many triggers is kept what they mean.
const remembered = 4096

const defaultPoll = 5 * time.Second

// NewScaler does nothing yet.
func NewScaler(o ScalerOptions) *Scaler {
	if o.Poll == 0 {
		o.Poll = defaultPoll
	}
	return &Scaler{ScalerOptions: o, capEvents: newCapEvents(o.Recorder, o.Clock)}
}

// identity is the same for what says the same.
type identity [sha256.Size]byte

func identify(ref *externalscaler.ScaledObjectRef) identity {
	var text []byte
	add := func(s string) { text = append(binary.AppendUvarint(text, uint64(len(s))), s...) }
	add(ref.GetNamespace())
	add(ref.GetName())
	for _, key := range slices.Sorted(maps.Keys(ref.GetScalerMetadata())) {
		add(key)
		add(ref.GetScalerMetadata()[key])
	}
	return sha256.Sum256(text)
}

// parsed is what became of a trigger's text.
type parsed struct {
	trigger *Trigger
	err     error
}

// trigger reads one, or remembers it.
func (s *Scaler) trigger(ref *externalscaler.ScaledObjectRef) (identity, *Trigger, error) {
	id := identify(ref)
	known := s.remembered()
	if p, ok := known.Get(id); ok {
		return id, p.(parsed).trigger, p.(parsed).err
	}
	t, err := Parse(ref.GetNamespace(), ref.GetScalerMetadata(), s.Profiles)
	known.Add(id, parsed{t, err})
	return id, t, err
}

// remembered forgets all when the profiles are others.
func (s *Scaler) remembered() *lru.Cache {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.stale:
		s.known = nil
	default:
	}
	if s.known == nil {
		// In this order: what is read after the channel was taken is no older than it.
		s.stale = s.Profiles.Changed()
		s.known = lru.New(remembered)
	}
	return s.known
}

// resolved is a trigger with the state of its target.
type resolved struct {
	ref     *externalscaler.ScaledObjectRef
	id      identity
	trigger *Trigger
	// target is nil where the trigger has none.
	target *workload.State
}

func (s *Scaler) resolve(ctx context.Context, ref *externalscaler.ScaledObjectRef) (resolved, error) {
	id, t, err := s.trigger(ref)
	if err != nil {
		return resolved{}, err
	}
	r := resolved{ref: ref, id: id, trigger: t}
	if t.Target != nil {
		state, err := s.Workloads.Workload(ctx, *t.Target)
		if err != nil {
			return resolved{}, err
		}
		r.target = &state
	}
	return r, nil
}

// value is what the metric says, and what of it may be reported: no more than there can be
// devices for.
func (s *Scaler) value(ctx context.Context, r resolved) (wanted, allowed float64, err error) {
	wanted, err = r.trigger.metric.value(ctx, &s.Sources, r.target)
	if err != nil {
		return 0, 0, err
	}
	if math.IsNaN(wanted) || math.IsInf(wanted, 0) {
		return 0, 0, unavailable(fmt.Errorf("metric %s gives %v, which is no number of anything", r.trigger.definition.name, wanted))
	}
	// Less than nothing is asked for by no replica.
	wanted = max(wanted, 0)
	if r.target == nil || !r.target.Claims {
		return wanted, wanted, nil
	}
	allowed, err = s.allowed(ctx, r, wanted)
	return wanted, allowed, err
}

// patience is how long a question waits for a plan.
const patience = 10 * time.Second

func (s *Sources) supply(ctx context.Context, replica scaleout.Replica) (scaleout.Supply, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	supply, err := s.Forecast.Supply(ctx, replica)
	if err != nil {
		return scaleout.Supply{}, unavailable(err)
	}
	if supply.Problem != "" {
		return scaleout.Supply{}, failure{fmt.Errorf("nothing can be planned with it: %s", supply.Problem), codes.FailedPrecondition}
	}
	return supply, nil
}
