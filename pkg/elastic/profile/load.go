package profile

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

//go:embed profiles.yaml
var embedded []byte

// file is the format of profiles.yaml and of an operator's file, whose fields are all optional.
type file struct {
	PollingInterval metav1.Duration `json:"pollingInterval"`
	Fallback        struct {
		Failures int32 `json:"failures"`
		Replicas int32 `json:"replicas"`
	} `json:"fallback"`
	ScaleOut rate `json:"scaleOut"`
	ScaleIn  rate `json:"scaleIn"`
	// Profiles are raw, so that each can be decoded over the one that it overrides.
	Profiles map[string]json.RawMessage `json:"profiles"`
}

type rate struct {
	Stabilization metav1.Duration `json:"stabilization"`
	Percent       int32           `json:"percent"`
	Pods          int32           `json:"pods"`
	Period        metav1.Duration `json:"period"`
}

type entry struct {
	Cooldown     metav1.Duration    `json:"cooldown"`
	Triggers     []string           `json:"triggers"`
	Targets      map[string]float64 `json:"targets"`
	Activation   map[string]float64 `json:"activation"`
	ScaleInBelow map[string]float64 `json:"scaleInBelow"`
	Warm         int32              `json:"warm"`
}

// Load returns Mica's profiles with the fields, numbers and profiles of override. It fails if override has an
// unknown field or an invalid number.
func Load(override []byte) (Set, error) {
	var f file
	entries := map[string]*entry{}
	for _, content := range [][]byte{embedded, override} {
		f.Profiles = nil
		if err := decode(content, &f); err != nil {
			return Set{}, fmt.Errorf("read the profiles: %w", err)
		}
		for _, name := range slices.Sorted(maps.Keys(f.Profiles)) {
			if entries[name] == nil {
				entries[name] = &entry{}
			}
			if err := decode(f.Profiles[name], entries[name]); err != nil {
				return Set{}, fmt.Errorf("read profile %s: %w", name, err)
			}
		}
	}
	s := f.set()
	for name, e := range entries {
		s.profiles[name] = e.profile(name)
	}
	return s, s.validate()
}

// decode decodes content over the values in to. It joins errors with several lines.
func decode(content []byte, to any) error {
	if err := yaml.UnmarshalStrict(content, to); err != nil {
		return fmt.Errorf("%s", strings.Join(strings.Fields(err.Error()), " "))
	}
	return nil
}

func (f file) set() Set {
	return Set{
		PollingInterval: f.PollingInterval.Duration,
		Fallback:        Fallback{Failures: f.Fallback.Failures, Replicas: f.Fallback.Replicas},
		ScaleOut:        f.ScaleOut.rate(),
		ScaleIn:         f.ScaleIn.rate(),
		profiles:        map[string]Profile{},
	}
}

func (r rate) rate() Rate {
	return Rate{Stabilization: r.Stabilization.Duration, Percent: r.Percent, Pods: r.Pods, Period: r.Period.Duration}
}

func (e entry) profile(name string) Profile {
	return Profile{
		Name:         name,
		Triggers:     e.Triggers,
		Targets:      e.Targets,
		ScaleInBelow: e.ScaleInBelow,
		Activation:   e.Activation,
		Warm:         e.Warm,
		Cooldown:     e.Cooldown.Duration,
	}
}
