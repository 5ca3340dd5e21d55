package profile

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed profiles.yaml
var embedded []byte

// file is the format of profiles.yaml and of an operator's file, whose fields are all optional.
type file struct {
	Set `json:",inline"`
	// Profiles are raw, so that each can be decoded over the one that it overrides.
	Profiles map[string]json.RawMessage `json:"profiles"`
}

// Load returns Mica's profiles with the fields, numbers and profiles of override. It fails if override has an
// unknown field or an invalid number.
func Load(override []byte) (Set, error) {
	f := file{Set: Set{profiles: map[string]Profile{}}}
	for _, content := range [][]byte{embedded, override} {
		f.Profiles = nil
		if err := decode(content, &f); err != nil {
			return Set{}, fmt.Errorf("read the profiles: %w", err)
		}
		for _, name := range slices.Sorted(maps.Keys(f.Profiles)) {
			p := f.profiles[name]
			p.Name = name
			if err := decode(f.Profiles[name], &p); err != nil {
				return Set{}, fmt.Errorf("read profile %s: %w", name, err)
			}
			f.profiles[name] = p
		}
	}
	return f.Set, f.validate()
}

// decode decodes content over the values in to. It joins errors with several lines.
func decode(content []byte, to any) error {
	if err := yaml.UnmarshalStrict(content, to); err != nil {
		return fmt.Errorf("%s", strings.Join(strings.Fields(err.Error()), " "))
	}
	return nil
}
