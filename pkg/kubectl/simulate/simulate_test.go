package simulate

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

var now = time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)

// manifest reads texts, and has what the chart installs.
func manifest(t *testing.T, texts ...string) *Manifest {
	t.Helper()
	r, err := NewReader("default")
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range texts {
		if err := r.Read(fmt.Sprint("text ", i), strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	m, err := r.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	defaults, err := Defaults(slice.DefaultDriver)
	if err != nil {
		t.Fatal(err)
	}
	m.AddDefaults(defaults)
	return m
}

func file(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// imagine adds nodes of an instance type.
func imagine(t *testing.T, m *Manifest, instanceType string, count int) {
	t.Helper()
	predicted, err := Machine{InstanceType: instanceType, Driver: slice.DefaultDriver, Policies: m.Policies()}.Predict()
	if err != nil {
		t.Fatal(err)
	}
	m.AddNodes(predicted, instanceType, count)
}

func simulate(t *testing.T, m *Manifest) *Result {
	t.Helper()
	v, err := view.Read(t.Context(), Overlay{Manifest: m}, view.Options{Driver: slice.DefaultDriver, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	result, err := Run(t.Context(), v, m)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// screens are all widths at which outputs are compared.
var screens = []int{0, 100, 40}

func TestResults(t *testing.T) {
	for name, m := range map[string]func() *Manifest{
		"imagined": func() *Manifest {
			m := manifest(t, file(t, "pods.yaml"))
			imagine(t, m, "p5.48xlarge", 1)
			return m
		},
		"groups": func() *Manifest { return manifest(t, file(t, "pods.yaml"), file(t, "groups.yaml")) },
		"shared": func() *Manifest {
			m := manifest(t, file(t, "shared.yaml"))
			imagine(t, m, "g6.12xlarge", 2)
			return m
		},
	} {
		t.Run(name, func(t *testing.T) {
			result := simulate(t, m())
			var all bytes.Buffer
			for _, width := range screens {
				fmt.Fprintf(&all, "--- %d\n", width)
				if err := result.Write(&all, terminal.Screen{Width: width}, width == 100); err != nil {
					t.Fatal(err)
				}
			}
			narrow(t, all.String(), 40)
			all.WriteString("--- yaml\n")
			if err := terminal.YAML.Encode(&all, result); err != nil {
				t.Fatal(err)
			}
			fixture.Golden(t, name+".golden.txt", all.String())
		})
	}
}

// narrow checks the part of a screen of so many characters.
func narrow(t *testing.T, all string, width int) {
	t.Helper()
	_, part, _ := strings.Cut(all, fmt.Sprintf("--- %d\n", width))
	for line := range strings.Lines(part) {
		line = strings.TrimSuffix(line, "\n")
		if utf8.RuneCountInString(line) > width && strings.Contains(strings.TrimSpace(line), " ") {
			t.Errorf("a line is longer than %d characters: %q", width, line)
		}
	}
}

func TestPublished(t *testing.T) {
	defaults, err := Defaults(slice.DefaultDriver)
	if err != nil {
		t.Fatal(err)
	}
	for _, instanceType := range []string{"p5.48xlarge", "g6.12xlarge"} {
		machine := Machine{InstanceType: instanceType, Driver: slice.DefaultDriver, DriverVersion: "580.95.05", Policies: defaults.Policies()}
		published, err := machine.Published()
		if err != nil {
			t.Fatal(err)
		}
		var all bytes.Buffer
		for _, width := range screens {
			fmt.Fprintf(&all, "--- %d\n", width)
			if err := published.Write(&all, terminal.Screen{Width: width}, width == 100); err != nil {
				t.Fatal(err)
			}
		}
		narrow(t, all.String(), 40)
		fixture.Golden(t, instanceType+".golden.txt", all.String())
		for _, s := range published.Slices {
			for _, d := range s.Spec.Devices {
				if _, has := d.Attributes["uuid"]; has {
					t.Errorf("%s has an invented UUID", d.Name)
				}
			}
		}
	}
}

// What is printed as YAML is what a node would write: whole ResourceSlices.
func TestPublishedSlicesAreObjects(t *testing.T) {
	published, err := Machine{InstanceType: "g5.xlarge", Driver: slice.DefaultDriver}.Published()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := terminal.YAML.Encode(&out, published.List()); err != nil {
		t.Fatal(err)
	}
	var list resourceapi.ResourceSliceList
	if err := yaml.UnmarshalStrict(out.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.Items[0].Kind != "ResourceSlice" || *list.Items[0].Spec.NodeName != "g5.xlarge" || list.Items[0].Spec.Devices[0].Name != "gpu-0" {
		t.Errorf("got %s", out.String())
	}
}

// The chart's values say what there is without a cluster, too.
func TestDefaultsAreTheCharts(t *testing.T) {
	rendered, err := os.ReadFile("../../../deployments/helm/testdata/defaults.golden.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader("")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Read("the chart", bytes.NewReader(rendered)); err != nil {
		t.Fatal(err)
	}
	defaults, err := Defaults(slice.DefaultDriver)
	if err != nil {
		t.Fatal(err)
	}
	specs := func(m *Manifest) map[string]any {
		all := map[string]any{}
		for _, class := range m.classes {
			all[class.Name] = class.Spec
		}
		for _, policy := range m.policies {
			all[policy.Name] = policy.Spec
		}
		return all
	}
	if diff := cmp.Diff(specs(&r.manifest), specs(defaults)); diff != "" {
		t.Errorf("-chart +defaults:\n%s", diff)
	}
	if other, err := Defaults("gpu.example.com"); err != nil || len(other.classes) > 0 {
		t.Errorf("a driver of another name has classes: %v, %v", other, err)
	}
}

// Ten thousand pods, the most that are read, are planned while somebody waits.
func TestManyPodsAreSimulated(t *testing.T) {
	deployment := strings.Replace(file(t, "shared.yaml"), "replicas: 3", "replicas: 9990", 1)
	m := manifest(t, deployment)
	imagine(t, m, "g6.12xlarge", maxMachines)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	v, err := view.Read(ctx, Overlay{Manifest: m}, view.Options{Driver: slice.DefaultDriver, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	result, err := Run(ctx, v, m)
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Pods) < 9990 {
		t.Errorf("%d pods are simulated", len(result.Pods))
	}
}

func TestBadMachines(t *testing.T) {
	for text, want := range map[string]string{
		"p5.48xlarge=0": "p5.48xlarge=2", "p5.48xlarge=x": "number of nodes", "p5.48xlarge=1001": "from 1 to 1000",
	} {
		_, _, err := ParseCount(text)
		fixture.Sentence(t, err, want)
	}
	_, err := Machine{InstanceType: "m5.large", Driver: slice.DefaultDriver}.Predict()
	if err == nil {
		t.Error("a machine without GPUs has some")
	}
}
