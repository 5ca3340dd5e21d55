package docs

import (
	"os"
	"path/filepath"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// `kubectl explain` prints what a field's description says.
func TestEveryFieldOfTheAPIIsDescribed(t *testing.T) {
	files, err := filepath.Glob("../../deployments/helm/mica/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Fatal(err)
		}
		for _, version := range crd.Spec.Versions {
			root := version.Schema.OpenAPIV3Schema
			for _, part := range []string{"spec", "status"} {
				if fields, has := root.Properties[part]; has {
					expectDescriptions(t, crd.Spec.Names.Kind+"."+part, fields)
				}
			}
		}
	}
}

func expectDescriptions(t *testing.T, path string, schema apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	for name, field := range schema.Properties {
		if field.Description == "" {
			t.Errorf("%s.%s has no description", path, name)
		}
		expectDescriptions(t, path+"."+name, field)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		expectDescriptions(t, path+"[]", *schema.Items.Schema)
	}
}
