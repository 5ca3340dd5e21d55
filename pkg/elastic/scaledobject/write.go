package scaledobject

import (
	"encoding/json"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// all returns the objects in the order in which to apply them.
func (o Objects) all() []any {
	var all []any
	for _, a := range o.Authentications {
		all = append(all, a)
	}
	return append(all, o.ScaledObject)
}

// YAML writes the objects as documents.
func (o Objects) YAML(w io.Writer) error {
	for i, object := range o.all() {
		text, err := yaml.Marshal(object)
		if err != nil {
			return fmt.Errorf("write the objects as YAML: %w", err)
		}
		if i > 0 {
			text = append([]byte("---\n"), text...)
		}
		if _, err := w.Write(text); err != nil {
			return fmt.Errorf("write the objects as YAML: %w", err)
		}
	}
	return nil
}

// JSON writes one object, or a list of them.
func (o Objects) JSON(w io.Writer) error {
	var value any = o.ScaledObject
	if all := o.all(); len(all) > 1 {
		value = struct {
			metav1.TypeMeta `json:",inline"`
			Items           []any `json:"items"`
		}{metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, all}
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("write the objects as JSON: %w", err)
	}
	return nil
}
