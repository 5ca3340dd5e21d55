// Package crd compares the kinds of mica.gpu that an API server serves with those of this version. Helm installs
// CustomResourceDefinitions with a chart and never upgrades them, and the API server silently drops unknown fields. It
// writes nothing.
package crd

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Path serves the schemas of the kinds as OpenAPI v3, to every user.
const Path = "/openapi/v3/apis/mica.gpu/v1alpha1"

// Remedy upgrades the CustomResourceDefinitions.
const Remedy = "kubectl apply --server-side --filename deployments/helm/mica/crds"

// kinds have fields that users or the controller write.
var kinds = []any{v1alpha1.GPUBudget{}, v1alpha1.GPUHeadroom{}, v1alpha1.GPUNode{}, v1alpha1.GPUNodeGroup{}, v1alpha1.GPUPolicy{}}

// schema has the fields of OpenAPI that Lacking reads.
type schema struct {
	Properties map[string]schema `json:"properties"`
	Items      *schema           `json:"items"`
	Kinds      []struct {
		Kind string `json:"kind"`
	} `json:"x-kubernetes-group-version-kind"`
}

// Lacking returns the kinds and fields of this version that the document at Path lacks, such as
// "GPUNodeGroup.spec.scaleInAfter", sorted.
func Lacking(document []byte) ([]string, error) {
	var parsed struct {
		Components struct {
			Schemas map[string]schema `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(document, &parsed); err != nil {
		return nil, fmt.Errorf("read the schemas of mica.gpu: %w", err)
	}
	served := map[string]schema{}
	for _, s := range parsed.Components.Schemas {
		for _, kind := range s.Kinds {
			served[kind.Kind] = s
		}
	}
	var missing []string
	for _, kind := range kinds {
		t := reflect.TypeOf(kind)
		s, found := served[t.Name()]
		if !found {
			missing = append(missing, t.Name())
			continue
		}
		missing = append(missing, lacking(t.Name(), t, s)...)
	}
	slices.Sort(missing)
	return missing, nil
}

// lacking checks only the API's own types, not those of Kubernetes.
func lacking(path string, t reflect.Type, s schema) []string {
	for ; t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice; t = t.Elem() {
		if t.Kind() == reflect.Slice && s.Items != nil {
			s = *s.Items
		}
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[v1alpha1.GPUNodeGroup]().PkgPath() {
		return nil
	}
	var missing []string
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && strings.Contains(options, "inline"):
			missing = append(missing, lacking(path, field.Type, s)...)
		case name == "":
		default:
			inner, found := s.Properties[name]
			if !found {
				missing = append(missing, path+"."+name)
				continue
			}
			missing = append(missing, lacking(path+"."+name, field.Type, inner)...)
		}
	}
	return missing
}

// most is the number of fields that Sentence names.
const most = 3

// Sentence describes what is missing and the fix; empty if nothing is.
func Sentence(missing []string) string {
	if len(missing) == 0 {
		return ""
	}
	named := strings.Join(missing[:min(len(missing), most)], ", ")
	if more := len(missing) - most; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("The CustomResourceDefinitions are older than Mica: the API server drops %s; upgrade them: %s.", named, Remedy)
}
