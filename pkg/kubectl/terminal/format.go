package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Format is the value of -o.
type Format string

// The formats. Each command passes those that it takes to Check.
const (
	Tabular Format = "table"
	Wide    Format = "wide"
	JSON    Format = "json"
	YAML    Format = "yaml"
)

// Check returns an error for a format that a command does not take.
func (f Format) Check(has ...Format) error {
	if slices.Contains(has, f) {
		return nil
	}
	names := make([]string, len(has))
	for i, format := range has {
		names[i] = string(format)
	}
	return fmt.Errorf("unknown format -o %q: use one of %s", string(f), strings.Join(names, ", "))
}

// Encode writes a value as JSON or YAML.
func (f Format) Encode(w io.Writer, value any) error {
	if f == YAML {
		text, err := yaml.Marshal(value)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		_, err = w.Write(text)
		return err
	}
	encoder := json.NewEncoder(w)
	// People read selectors with >= and &&, too.
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
