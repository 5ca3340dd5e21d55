package template

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// maxSummaries is how many entries a group's status takes.
const maxSummaries = 32

// Summary counts the template's devices, whole GPUs before
// partitions. A partition counts once for each place where it can be made: not all of
// them can be had at once.
func (t *Template) Summary() []v1alpha1.DeviceSummary {
	type row struct {
		model
		memory int64
	}
	var rows []row
	summaries := map[row]*v1alpha1.DeviceSummary{}
	for _, s := range t.Slices {
		for _, d := range s.Spec.Devices {
			r := row{model: model{text(d, gpu.AttributeType), text(d, gpu.AttributeProductName), text(d, gpu.AttributeProfile)}}
			r.form = cmp.Or(r.form, s.Spec.Driver)
			capacity, has := d.Capacity[gpu.CapacityMemory]
			if has {
				r.memory = capacity.Value.Value()
			}
			if summaries[r] == nil {
				rows = append(rows, r)
				summaries[r] = summarize(r.model, capacity, has)
			}
			summaries[r].Count++
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Or(a.model.compare(b.model), cmp.Compare(a.memory, b.memory)) })
	var result []v1alpha1.DeviceSummary
	for _, r := range rows[:min(len(rows), maxSummaries)] {
		result = append(result, *summaries[r])
	}
	return result
}

func summarize(k model, memory resourceapi.DeviceCapacity, has bool) *v1alpha1.DeviceSummary {
	s := &v1alpha1.DeviceSummary{Type: k.form, ProductName: k.product, Profile: k.profile}
	if has {
		quantity := memory.Value.DeepCopy()
		s.Memory = &quantity
	}
	return s
}
