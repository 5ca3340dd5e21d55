package view

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// GPUs are counted once in however many forms they are offered, on nodes that have published none
// by what their group promises.
func TestBudgetsCountGPUs(t *testing.T) {
	g := testGroup("g", pool("g"), typed("p5.48xlarge"))
	var o objects
	o.machine(t, g, "p5.48xlarge", "complete", time.Hour)
	o.nodes.Items = append(o.nodes.Items, *testNode("boots", 95*time.Second, pool("g")), *testNode("cpu", 95*time.Second, nil))
	o.groups.Items = append(o.groups.Items, *g)
	o.budgets.Items = []v1alpha1.GPUBudget{{
		ObjectMeta: metav1.ObjectMeta{Name: "team"},
		Spec: v1alpha1.GPUBudgetSpec{
			Namespaces: []v1alpha1.Namespace{"a", "b"}, GPUs: ptr.To[int32](16), PricePerHour: ptr.To(resource.MustParse("98.5")),
			Rate: &v1alpha1.ScaleUpRate{Nodes: 2, Period: metav1.Duration{Duration: 10 * time.Minute}},
		},
	}, {ObjectMeta: metav1.ObjectMeta{Name: "going", DeletionTimestamp: &metav1.Time{Time: t0}}}}
	v, err := Read(t.Context(), listed{objects: &o}, Options{Driver: testDriver, Now: t0})
	if err != nil {
		t.Fatal(err)
	}
	want := []scaleout.Budget{{
		Name: "team", Namespaces: []string{"a", "b"}, GPUs: ptr.To(16), PricePerHour: ptr.To(resource.MustParse("98.5")),
		Rate: &scaleout.Rate{Nodes: 2, Period: "10m", Since: metav1.NewTime(t0.Add(-10 * time.Minute))},
	}}
	if diff := cmp.Diff(want, v.Budgets); diff != "" {
		t.Errorf("budgets (-want +got):\n%s", diff)
	}
	gpus := map[string]int{"of a new node": v.Groups[0].GPUs}
	for _, node := range v.Nodes {
		gpus[node.Object.Name] = node.GPUs
	}
	if diff := cmp.Diff(map[string]int{"of a new node": 8, "complete": 8, "boots": 8, "cpu": 0}, gpus); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
	if want := t0.Add(10*time.Minute - 95*time.Second + time.Second); !v.Again.Equal(want) {
		t.Errorf("it is planned again at %s, want %s, when the rate lets go of a node", v.Again, want)
	}
}
