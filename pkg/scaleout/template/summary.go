package template

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/gpu"
)

// maxSummaries is the limit of entries in the status of a group.
const maxSummaries = 32

// Summary counts the template's devices, whole GPUs before partitions. A partition counts once for each place on a GPU:
// not all of them fit at the same time.
func (t *Template) Summary() []v1alpha1.DeviceSummary {
	type row struct {
		model
		memory int64
	}
	summaries := map[row]*v1alpha1.DeviceSummary{}
	for _, s := range t.Slices {
		for _, d := range s.Spec.Devices {
			r := row{model: modelOf(d)}
			r.form = cmp.Or(r.form, s.Spec.Driver)
			memory, has := d.Capacity[gpu.CapacityMemory]
			r.memory = memory.Value.Value()
			if summaries[r] == nil {
				summaries[r] = &v1alpha1.DeviceSummary{Type: r.form, ProductName: r.product, Profile: r.profile}
			}
			if has {
				summaries[r].Memory = ptr.To(memory.Value.DeepCopy())
			}
			summaries[r].Count++
		}
	}
	rows := slices.SortedFunc(maps.Keys(summaries), func(a, b row) int { return cmp.Or(a.model.compare(b.model), cmp.Compare(a.memory, b.memory)) })
	var result []v1alpha1.DeviceSummary
	for _, r := range rows[:min(len(rows), maxSummaries)] {
		result = append(result, *summaries[r])
	}
	return result
}
