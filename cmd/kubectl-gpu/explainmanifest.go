package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/kubectl/explain"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
)

// manifest explains where the pods of files would go, in the cluster or on new nodes of --template. Without a
// file, it prints what these nodes publish.
func (x explainer) manifest(ctx context.Context, namespace string, in io.Reader) (result, error) {
	if x.offline && len(x.templates) == 0 {
		return result{}, errors.New("--offline needs --template: there is no node without a cluster")
	}
	manifest, err := x.readFiles(namespace, in)
	if err != nil {
		return result{}, err
	}
	cluster := explain.Cluster{Base: x.reader, Manifest: manifest, Templates: x.templates}
	templates, err := x.predict(ctx, cluster)
	if err != nil {
		return result{}, err
	}
	if manifest.Empty() {
		if len(templates) == 0 || len(manifest.Ignored) > 0 {
			return result{}, fmt.Errorf("no pod in the files: give Pods, Deployments, StatefulSets or Jobs%s", besides(manifest.Ignored))
		}
		return templatesAnswer(templates), nil
	}
	v, err := explainer{x.options, cluster, x.now}.look(ctx)
	if err != nil {
		return result{}, err
	}
	plan, err := explain.PlanFor(ctx, v.Snapshot, manifest)
	if err != nil {
		return result{}, err
	}
	return result{value: plan, table: plan.Write, missing: plan.Missing()}, nil
}

func besides(ignored []string) string {
	if len(ignored) == 0 {
		return ""
	}
	return ", and not only " + strings.Join(ignored[:min(len(ignored), 3)], ", ")
}

func (o options) readFiles(namespace string, in io.Reader) (*explain.Manifest, error) {
	manifest, err := explain.NewManifest(namespace)
	if err != nil {
		return nil, err
	}
	for _, name := range o.files {
		if err := readFile(manifest, name, in); err != nil {
			return nil, err
		}
	}
	return manifest, nil
}

// readFile adds a file, or standard input for -.
func readFile(manifest *explain.Manifest, name string, in io.Reader) error {
	if name == "-" {
		return manifest.Read("standard input", in)
	}
	file, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read the manifests: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	return manifest.Read(name, file)
}

// predict returns what nodes of --template publish, with the policies of the files and the cluster.
func (o options) predict(ctx context.Context, cluster explain.Cluster) ([]*explain.Template, error) {
	var policies v1alpha1.GPUPolicyList
	if len(o.templates) > 0 {
		if err := cluster.List(ctx, &policies); err != nil && !meta.IsNoMatchError(err) {
			return nil, fmt.Errorf("list the GPUPolicies: %w", err)
		}
	}
	var all []*explain.Template
	for _, instanceType := range o.templates {
		t, err := explain.Predict(o.driver, instanceType, policies.Items)
		if err != nil {
			return nil, fmt.Errorf("--template: %w", suggested(err, instanceType))
		}
		all = append(all, t)
	}
	return all, nil
}

func templatesAnswer(templates []*explain.Template) result {
	items := []*resourceapi.ResourceSlice{}
	for _, t := range templates {
		items = append(items, t.Slices...)
	}
	return result{
		value: map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}, "items": items},
		table: func(w io.Writer, screen terminal.Screen) error {
			for _, t := range templates {
				if err := t.Write(w, screen); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// suggested adds instance types whose names are like an unknown one.
func suggested(err error, instanceType string) error {
	if !errors.Is(err, catalog.ErrUnknownInstance) {
		return err
	}
	known := catalog.InstanceTypes()
	if similar := alike(instanceType, known); len(similar) > 0 {
		return fmt.Errorf("%w; did you mean %s?", err, strings.Join(similar, ", "))
	}
	var families []string
	for _, name := range known {
		if family, _, _ := strings.Cut(name, "."); !slices.Contains(families, family) {
			families = append(families, family)
		}
	}
	return fmt.Errorf("%w; it has types of the families %s", err, strings.Join(families, ", "))
}
