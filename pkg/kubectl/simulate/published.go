package simulate

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
)

// Published is what a node of a machine would publish.
type Published struct {
	InstanceType string
	// Policy is the GPUPolicy that applies, with its generation, or empty.
	Policy string
	// Unknown are attributes that only a node knows. The devices do not have them.
	Unknown []resourceapi.QualifiedName
	Slices  []*resourceapi.ResourceSlice
}

// Published names the node by its instance type.
func (m Machine) Published() (*Published, error) {
	predicted, err := m.Predict()
	if err != nil {
		return nil, err
	}
	name, _, _ := strings.Cut(predicted.Policy, "/")
	made := &Published{InstanceType: m.InstanceType, Policy: name, Unknown: predicted.Invented()}
	for _, slice := range predicted.Slices {
		own := onNode(slice.DeepCopy(), m.InstanceType)
		own.Name = strings.TrimSuffix(slice.Name, predicted.Node.Name) + m.InstanceType
		for i := range own.Spec.Devices {
			for _, unknown := range made.Unknown {
				delete(own.Spec.Devices[i].Attributes, unknown)
			}
		}
		own.TypeMeta = metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceSlice"}
		made.Slices = append(made.Slices, &own)
	}
	return made, nil
}

// List has the slices, as kubectl get writes them.
func (p *Published) List() any {
	items := make([]any, len(p.Slices))
	for i := range p.Slices {
		items[i] = p.Slices[i]
	}
	return map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}, "items": items}
}

// shape is devices that are alike but for their GPU and place.
type shape struct {
	form, product, profile, memory, share string
}

// shapeOf is the shape of a device.
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
		s.share = shareOf(d)
	}
	return s
}

// shareOf is what a claim takes of a shared device that does not say how much.
func shareOf(d resourceapi.Device) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		if policy := d.Capacity[name].RequestPolicy; policy != nil && policy.Default != nil {
			parts = append(parts, fmt.Sprintf("%s %s", name, policy.Default))
		}
	}
	return strings.Join(parts, ", ")
}

// Write prints a row per shape. Wide, it has an example of each, and where it can be had.
func (p *Published) Write(w io.Writer, screen terminal.Screen, wide bool) error {
	t := terminal.Table{Columns: []terminal.Column{
		{Title: "TYPE"}, {Title: "PROFILE"}, {Title: "MEMORY", Right: true}, {Title: "DEVICES", Right: true}, {Title: "DEFAULT SHARE"}, {Title: "PRODUCT", Spare: 1},
	}}
	if wide {
		t.Columns = append(t.Columns, terminal.Column{Title: "EXAMPLE"}, terminal.Column{Title: "OTHER CAPACITIES", Wrapped: true})
	}
	counts, examples, order := map[shape]int{}, map[shape]resourceapi.Device{}, []shape(nil)
	for _, slice := range p.Slices {
		for _, d := range slice.Spec.Devices {
			s := shapeOf(d)
			if counts[s] == 0 {
				order, examples[s] = append(order, s), d
			}
			counts[s]++
		}
	}
	for _, s := range order {
		row := terminal.Texts(s.form, cmp.Or(s.profile, "-"), s.memory, fmt.Sprint(counts[s]), cmp.Or(s.share, "-"), s.product)
		if wide {
			row = append(row, terminal.Texts(examples[s].Name, others(examples[s]))...)
		}
		t.Rows = append(t.Rows, row)
	}
	if err := screen.Write(w, t); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(p.notes(screen), "\n"))
	return err
}

// others are the capacities that have no column.
func others(d resourceapi.Device) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		if name != gpu.CapacityMemory {
			value := d.Capacity[name].Value
			parts = append(parts, fmt.Sprintf("%s %s", name, value.String()))
		}
	}
	return strings.Join(parts, ", ")
}

func (p *Published) notes(screen terminal.Screen) []string {
	policy := "without a GPUPolicy"
	if p.Policy != "" {
		policy = "with GPUPolicy " + p.Policy
	}
	var unknown []string
	for _, name := range p.Unknown {
		unknown = append(unknown, string(name))
	}
	return slices.Concat(
		screen.Lines(fmt.Sprintf("A node of type %s, %s, would publish this in %s.", p.InstanceType, policy, count(len(p.Slices), "ResourceSlice", "ResourceSlices")), 0),
		screen.Lines("Not all of it can be had at once: what is given of a GPU in one shape is gone from all others.", 0),
		screen.Lines(fmt.Sprintf("Left out, as only a node knows it: %s.", strings.Join(unknown, ", ")), 0),
	)
}
