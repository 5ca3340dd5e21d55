package keda

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/mica-gpu/mica/api/externalscaler"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// Trigger is a validated trigger of a ScaledObject.
type Trigger struct {
	definition *definition
	metric     metric
	// Target is the scaled workload. Without one (nil) there is no loading guard and no capacity cap.
	Target *workload.Ref
	// Threshold is the value per replica above which the HPA adds one, in thousandths at the finest.
	// Activation is the value above which the target has replicas at all.
	Threshold, Activation float64
	// Holds: the trigger keeps present replicas and never asks for more.
	Holds bool
	// Warm is the number of loaded standbys, behind their readiness gates, in addition to the replicas
	// that the value asks for.
	Warm int
	// LoadingTimeout is how long a pod with all its devices may take to become Ready.
	LoadingTimeout time.Duration
}

// trigger parses a trigger. KEDA sends the whole trigger with each request.
func (s *Scaler) trigger(ref *externalscaler.ScaledObjectRef) (*Trigger, error) {
	return Parse(ref.GetNamespace(), ref.GetScalerMetadata(), s.Profiles)
}

// identity is a hash of a trigger's content.
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

const defaultLoadingTimeout = 30 * time.Minute

// KEDA rounds thresholds to thousandths; a finer one would differ from that of the cap.
const (
	thousand       = 1000
	leastThreshold = 1.0 / thousand
	mostThreshold  = 1e12
)

// mostWarm catches typing errors: each standby holds devices.
const mostWarm = 1000

// Parse reads a trigger's metadata. Errors tell the trigger's author what to correct.
func Parse(namespace string, metadata map[string]string, profiles Profiles) (*Trigger, error) {
	t, err := parse(namespace, fields(metadata), profiles)
	if err != nil {
		return nil, invalid(fmt.Errorf("the trigger cannot be used: %w", err))
	}
	return t, nil
}

func parse(namespace string, f fields, profiles Profiles) (*Trigger, error) {
	d, err := definitionOf(f[keyMetric])
	if err != nil {
		return nil, err
	}
	if err := f.check(d); err != nil {
		return nil, err
	}
	t := &Trigger{definition: d}
	if text, ok := f[keyTarget]; ok {
		if t.Target, err = target(namespace, text); err != nil {
			return nil, err
		}
	} else if d.targeted {
		return nil, fmt.Errorf("%s is missing: metric %s is about the pods of one workload, such as Deployment/vllm", keyTarget, d.name)
	}
	if t.metric, err = d.read(f, namespace, t.Target); err != nil {
		return nil, err
	}
	if err := t.limits(f, profiles); err != nil {
		return nil, err
	}
	if err := t.role(f); err != nil {
		return nil, err
	}
	if err := t.warm(f); err != nil {
		return nil, err
	}
	return t, t.guard(f)
}

func target(namespace, text string) (*workload.Ref, error) {
	ref, err := reference(keyTarget, namespace, text)
	if err == nil && !ref.Scalable() {
		return nil, fmt.Errorf("%s %s cannot be scaled: name a Deployment, a StatefulSet, a ReplicaSet or another kind with a scale subresource", keyTarget, ref)
	}
	return ref, err
}

func reference(key, namespace, text string) (*workload.Ref, error) {
	ref, err := workload.ParseRef(namespace, text)
	if err != nil {
		return nil, fmt.Errorf("%s %w", key, err)
	}
	return &ref, nil
}

// limits reads threshold and activation, from the trigger or its profile.
func (t *Trigger) limits(f fields, profiles Profiles) error {
	threshold, set, err := f.number(keyThreshold)
	if err != nil {
		return err
	}
	activation, activationSet, err := f.number(keyActivation)
	if err != nil {
		return err
	}
	if !set {
		threshold, set = t.definition.threshold, t.definition.threshold > 0
	}
	origin := keyThreshold
	if name, ok := f[keyProfile]; ok {
		p, err := profiles.Get(name)
		if err != nil {
			return fmt.Errorf("%s %s is unknown: there are %s", keyProfile, quoted(name), strings.Join(profiles.Names(), ", "))
		}
		if !set {
			threshold, set = p.Targets[t.definition.name]
			origin = fmt.Sprintf("the threshold of profile %s for %s,", name, t.definition.name)
		}
		if !activationSet {
			activation = p.Activation[t.definition.name]
		}
		t.Holds = p.Holds(t.definition.name)
		if m, is := t.metric.(heldReplicas); is {
			t.metric = m.by(p)
		} else {
			t.Warm = int(p.Warm)
		}
		if !set {
			return fmt.Errorf("%s is missing: profile %s has none for metric %s", keyThreshold, name, t.definition.name)
		}
	}
	switch {
	case !set:
		return fmt.Errorf("%s is missing: set the value per replica above which a replica is added, or a %s that has one", keyThreshold, keyProfile)
	case threshold < leastThreshold || threshold > mostThreshold:
		return fmt.Errorf("%s %v is out of range: use %v to %.0f", origin, threshold, leastThreshold, mostThreshold)
	case activation < 0:
		return fmt.Errorf("%s %v is out of range: use 0 or more", keyActivation, activation)
	}
	t.Threshold, t.Activation = math.Round(threshold*thousand)/thousand, activation
	return nil
}

// role overrides the profile's Holds.
func (t *Trigger) role(f fields) error {
	switch f[keyRole] {
	case "":
	case "demand":
		t.Holds = false
	case "hold":
		t.Holds = true
	default:
		return fmt.Errorf("%s %s is unknown: use demand (ask for replicas above the threshold) or hold (keep replicas, and never ask for more)", keyRole, quoted(f[keyRole]))
	}
	if t.Holds && t.Target == nil {
		return fmt.Errorf("%s is missing: name the workload whose replicas the trigger holds", keyTarget)
	}
	return nil
}

// warm overrides the profile's Warm.
func (t *Trigger) warm(f fields) error {
	n, set, err := f.number(keyWarm)
	switch {
	case err != nil:
		return err
	case set && (n < 0 || n > mostWarm || n != math.Trunc(n)):
		return fmt.Errorf("%s %v is out of range: use a whole number of replicas from 0 to %d", keyWarm, n, mostWarm)
	case set:
		t.Warm = int(n)
	}
	if t.Target == nil {
		if set {
			return fmt.Errorf("%s needs %s: name the workload of the standbys", keyWarm, keyTarget)
		}
		t.Warm = 0
	}
	return nil
}

func (t *Trigger) guard(f fields) error {
	var err error
	if _, ok := f[keyLoadingTimeout]; ok && t.Target == nil {
		return fmt.Errorf("%s needs %s: name the workload that loads", keyLoadingTimeout, keyTarget)
	}
	t.LoadingTimeout, err = f.duration(keyLoadingTimeout, defaultLoadingTimeout)
	return err
}

// loading reports whether a pod of the target has its devices and is not Ready yet. It shows no load,
// and scaling it down would restart its loading.
func (t *Trigger) loading(target *workload.State, now time.Time) bool {
	if target == nil {
		return false
	}
	return slices.ContainsFunc(target.Pods, func(pod workload.Pod) bool {
		return !pod.Ready && !pod.LoadingSince.IsZero() && now.Sub(pod.LoadingSince) < t.LoadingTimeout
	})
}
