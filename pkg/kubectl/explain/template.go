package explain

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// Template is what a node of an instance type will publish.
type Template struct {
	InstanceType string
	// Policy is the GPUPolicy that will apply; empty: none.
	Policy string
	// Slices lack the attributes that only the node knows.
	Slices []*resourceapi.ResourceSlice
}

// Predict returns the template of an instance type. Its node has the type's name.
func Predict(driver, instanceType string, policies []v1alpha1.GPUPolicy) (*Template, error) {
	predicted, err := template.Predict(driver, groupOf(instanceType), instanceType, pointers(policies), template.StartupTaints{})
	if err != nil {
		return nil, err
	}
	policy, _, _ := strings.Cut(predicted.Policy, "/")
	t := &Template{InstanceType: instanceType, Policy: policy}
	for _, slice := range predicted.Slices {
		own := slice.DeepCopy()
		own.TypeMeta = metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceSlice"}
		own.Name = strings.TrimSuffix(slice.Name, predicted.Node.Name) + instanceType
		own.Spec.NodeName, own.Spec.Pool.Name = &instanceType, instanceType
		for i := range own.Spec.Devices {
			for _, unknown := range predicted.Invented() {
				delete(own.Spec.Devices[i].Attributes, unknown)
			}
		}
		t.Slices = append(t.Slices, own)
	}
	return t, nil
}

// shape is what devices have in common that differ by GPU and placement alone.
type shape struct {
	form, product, profile, memory, share string
}

func shapeOf(d resourceapi.Device) shape {
	text := func(name resourceapi.QualifiedName) string {
		if value := d.Attributes[name].StringValue; value != nil {
			return *value
		}
		return ""
	}
	s := shape{form: text(gpu.AttributeType), product: text(gpu.AttributeProductName), profile: text(gpu.AttributeProfile)}
	if memory, has := d.Capacity[gpu.CapacityMemory]; has {
		s.memory = memory.Value.String()
	}
	if d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations {
		s.share = defaultShare(d)
	}
	return s
}

// defaultShare is what a claim that names no capacity takes of a shared device.
func defaultShare(d resourceapi.Device) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		if policy := d.Capacity[name].RequestPolicy; policy != nil && policy.Default != nil {
			parts = append(parts, fmt.Sprintf("%s %s", name, policy.Default))
		}
	}
	return strings.Join(parts, ", ")
}

// Write prints a row per shape.
func (t *Template) Write(w io.Writer, screen terminal.Screen) error {
	counts, order := map[shape]int{}, []shape(nil)
	for _, slice := range t.Slices {
		for _, d := range slice.Spec.Devices {
			s := shapeOf(d)
			if counts[s] == 0 {
				order = append(order, s)
			}
			counts[s]++
		}
	}
	table := terminal.Table{Columns: []terminal.Column{
		{Title: "TYPE"}, {Title: "PROFILE"}, {Title: "MEMORY", Right: true}, {Title: "DEVICES", Right: true}, {Title: "DEFAULT SHARE"}, {Title: "PRODUCT", Spare: 1},
	}}
	for _, s := range order {
		table.Rows = append(table.Rows, terminal.Texts(s.form, cmp.Or(s.profile, "-"), s.memory, fmt.Sprint(counts[s]), cmp.Or(s.share, "-"), s.product))
	}
	if err := screen.Write(w, table); err != nil {
		return err
	}
	policy := "without a GPUPolicy"
	if t.Policy != "" {
		policy = "with GPUPolicy " + t.Policy
	}
	lines := screen.Lines(fmt.Sprintf("A node of type %s publishes this, %s. Shapes of one GPU exclude each other: a claim gets a device only if enough of its GPU is left.", t.InstanceType, policy), 0)
	_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(lines, "\n"))
	return err
}
