package docs

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/test/fixture"
)

//go:generate go test . -run TestTheAPIReferenceIsThatOfTheCRDs -update

const apiHead = `---
title: API reference
description: Every field of the kinds in mica.gpu, with its type, its default and what it is for.
weight: 5
---

# API reference

<!-- Made of the CustomResourceDefinitions by ` + "`go generate ./hack/docs`" + `. Change the comments in api/v1alpha1. -->

All kinds are of ` + "`mica.gpu/v1alpha1`" + ` and belong to the cluster, not to a namespace. ` + "`kubectl explain`" + ` has the same texts.
`

func TestTheAPIReferenceIsThatOfTheCRDs(t *testing.T) {
	files, err := filepath.Glob("../../deployments/helm/mica/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no CustomResourceDefinitions: %v", err)
	}
	page := apiHead
	for _, file := range files {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict([]byte(read(t, file)), &crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		page += kindSection(crd)
	}
	// Relative to testdata.
	fixture.Golden(t, "../../../docs/reference/api.md", page)
}

func kindSection(crd apiextensionsv1.CustomResourceDefinition) string {
	version := crd.Spec.Versions[0]
	schema := version.Schema.OpenAPIV3Schema
	var section strings.Builder
	fmt.Fprintf(&section, "\n## %s\n\n%s\n\nShort: `%s`.", crd.Spec.Names.Kind, sentence(schema.Description), strings.Join(crd.Spec.Names.ShortNames, "`, `"))
	var columns []string
	for _, column := range version.AdditionalPrinterColumns {
		columns = append(columns, strings.ToUpper(column.Name))
	}
	fmt.Fprintf(&section, " Columns of `kubectl get`: %s.\n", strings.Join(columns, ", "))
	for _, part := range slices.Sorted(maps.Keys(schema.Properties)) {
		if slices.Contains([]string{"apiVersion", "kind", "metadata"}, part) {
			continue
		}
		property := schema.Properties[part]
		fmt.Fprintf(&section, "\n### %s of %s\n\n", part, crd.Spec.Names.Kind)
		if rows := fieldRows(property, ""); len(rows) > 0 {
			section.WriteString("| field | type | meaning |\n|---|---|---|\n" + strings.Join(rows, ""))
		} else {
			section.WriteString(sentence(property.Description) + "\n")
		}
		for _, rule := range rulesOf(property) {
			section.WriteString("\n" + rule)
		}
	}
	return section.String()
}

// fieldRows are the rows of a table with every field below a schema, by its path.
func fieldRows(schema apiextensionsv1.JSONSchemaProps, path string) []string {
	var rows []string
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		field := schema.Properties[name]
		here := path + name
		text := sentence(field.Description)
		if slices.Contains(schema.Required, name) {
			text = "Required. " + text
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", here, typeOf(field), escapeCell(text+bounds(field))))
		// conditions are of Kubernetes, the same everywhere.
		if name == "conditions" {
			continue
		}
		rows = append(rows, fieldRows(field, here+".")...)
		if field.Items != nil && field.Items.Schema != nil {
			rows = append(rows, fieldRows(*field.Items.Schema, here+"[].")...)
		}
		if field.AdditionalProperties != nil && field.AdditionalProperties.Schema != nil {
			rows = append(rows, fieldRows(*field.AdditionalProperties.Schema, here+".KEY.")...)
		}
	}
	return rows
}

func typeOf(schema apiextensionsv1.JSONSchemaProps) string {
	switch {
	case schema.XIntOrString:
		return "quantity"
	case schema.Items != nil && schema.Items.Schema != nil:
		return "list of " + typeOf(*schema.Items.Schema)
	case schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil:
		return "map of " + typeOf(*schema.AdditionalProperties.Schema)
	case schema.Format != "":
		return schema.Format
	}
	return schema.Type
}

// bounds are what a value has to be, in words.
func bounds(schema apiextensionsv1.JSONSchemaProps) string {
	var text []string
	if len(schema.Enum) > 0 {
		var values []string
		for _, value := range schema.Enum {
			values = append(values, "`"+strings.Trim(string(value.Raw), `"`)+"`")
		}
		text = append(text, "One of "+strings.Join(values, ", ")+".")
	}
	if schema.Default != nil {
		text = append(text, "Default: `"+strings.Trim(string(schema.Default.Raw), `"`)+"`.")
	}
	if schema.Minimum != nil {
		text = append(text, "At least "+strconv.FormatFloat(*schema.Minimum, 'f', -1, 64)+".")
	}
	if schema.Maximum != nil {
		text = append(text, "At most "+strconv.FormatFloat(*schema.Maximum, 'f', -1, 64)+".")
	}
	if schema.MaxItems != nil {
		text = append(text, fmt.Sprintf("At most %d.", *schema.MaxItems))
	}
	for _, rule := range schema.XValidations {
		if rule.Message != "" {
			text = append(text, "Refused otherwise: "+rule.Message+".")
		}
	}
	if len(text) == 0 {
		return ""
	}
	return " " + strings.Join(text, " ")
}

func rulesOf(schema apiextensionsv1.JSONSchemaProps) []string {
	var rules []string
	for _, rule := range schema.XValidations {
		if rule.Message != "" {
			rules = append(rules, "Refused otherwise: "+rule.Message+".\n")
		}
	}
	return rules
}

// sentence is a description in one line.
func sentence(description string) string { return strings.Join(strings.Fields(description), " ") }

// escapeCell keeps what a table, or HTML, would take for its own.
func escapeCell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`).Replace(text)
}
