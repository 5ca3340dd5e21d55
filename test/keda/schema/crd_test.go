package schema

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// kind is how an API server with KEDA's CRDs would judge objects of a kind.
type kind struct {
	structural *structuralschema.Structural
	openAPI    validation.SchemaValidator
	rules      *cel.Validator
}

// kinds are those of the examples.
func kinds(t *testing.T) map[string]kind {
	t.Helper()
	directory, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kedacore/keda/v2").Output()
	if err != nil {
		t.Fatalf("find KEDA's module: %v", err)
	}
	bases := filepath.Join(strings.TrimSpace(string(directory)), "config", "crd", "bases")
	return map[string]kind{
		"ScaledObject":          readKind(t, filepath.Join(bases, "keda.sh_scaledobjects.yaml")),
		"TriggerAuthentication": readKind(t, filepath.Join(bases, "keda.sh_triggerauthentications.yaml")),
	}
}

func readKind(t *testing.T, path string) kind {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(content, &crd); err != nil {
		t.Fatal(err)
	}
	if len(crd.Spec.Versions) != 1 || crd.Spec.Versions[0].Name != "v1alpha1" {
		t.Fatalf("%s has other versions than v1alpha1", path)
	}
	var schema apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &schema, nil); err != nil {
		t.Fatal(err)
	}
	structural, err := structuralschema.NewStructural(&schema)
	if err != nil {
		t.Fatal(err)
	}
	openAPI, _, err := validation.NewSchemaValidator(&schema)
	if err != nil {
		t.Fatal(err)
	}
	return kind{structural, openAPI, cel.NewValidator(structural, true, celconfig.PerCallLimit)}
}

// judge tells what is wrong with an object.
func (k kind) judge(ctx context.Context, object map[string]any) error {
	var problems []error
	unknown := pruning.PruneWithOptions(object, k.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	for _, path := range unknown {
		problems = append(problems, fmt.Errorf("there is no field %s", path))
	}
	for _, err := range validation.ValidateCustomResource(nil, object, k.openAPI) {
		problems = append(problems, err)
	}
	if k.rules != nil {
		failures, _ := k.rules.Validate(ctx, nil, k.structural, object, nil, celconfig.RuntimeCELCostBudget)
		for _, err := range failures {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}
