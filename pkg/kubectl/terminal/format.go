package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Format is how a command prints: the value of -o.
type Format string

// The formats that commands have. Each command says which of them it takes.
const (
	Tabular Format = "table"
	Wide    Format = "wide"
	JSON    Format = "json"
	YAML    Format = "yaml"
)

// Check is an error for a format that a command does not have.
func (f Format) Check(has ...Format) error {
	if slices.Contains(has, f) {
		return nil
	}
	names := make([]string, len(has))
	for i, format := range has {
		names[i] = string(format)
	}
	return fmt.Errorf("-o %q is no format that this command prints: choose one of %s", string(f), strings.Join(names, ", "))
}

// Encode writes a value for programs, as JSON or YAML.
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
	// Selectors are full of >= and &&, which are to be read by people as well.
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// Gibibytes is an amount of memory as people read it, such as 79.6Gi.
func Gibibytes(bytes int64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(bytes)/(1<<30)), ".0") + "Gi"
}
