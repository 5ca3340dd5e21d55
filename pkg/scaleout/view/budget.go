package view

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// addBudgets adds the budgets, and the numbers of GPUs that count for them.
func (r *reading) addBudgets(v *View) {
	for _, object := range pointers(r.budgets.Items) {
		if object.DeletionTimestamp == nil {
			v.BudgetObjects = append(v.BudgetObjects, object)
			v.Budgets = append(v.Budgets, r.budget(object))
		}
	}
	if len(v.Budgets) == 0 {
		return
	}
	promised := map[string]int{}
	for i := range v.Groups {
		if t := v.Groups[i].Template; t != nil {
			v.Groups[i].GPUs = template.GPUs(r.Driver, t.Slices)
		}
		promised[v.Groups[i].Name] = v.Groups[i].GPUs
	}
	for i := range v.Nodes {
		node := &v.Nodes[i]
		// A starting node has not published all of its GPUs yet, and an unhealthy one may never publish them.
		node.GPUs = max(template.GPUs(r.Driver, r.slices[node.Object.Name]), promised[node.Group])
		for _, b := range v.Budgets {
			v.Again = sooner(v.Again, r.leaves(b.Rate, node.Object.CreationTimestamp))
		}
	}
}

func (r *reading) budget(object *v1alpha1.GPUBudget) scaleout.Budget {
	b := scaleout.Budget{Name: object.Name, PricePerHour: object.Spec.PricePerHour}
	for _, namespace := range object.Spec.Namespaces {
		b.Namespaces = append(b.Namespaces, string(namespace))
	}
	if gpus := object.Spec.GPUs; gpus != nil {
		b.GPUs = ptr.To(int(*gpus))
	}
	if rate := object.Spec.Rate; rate != nil {
		b.Rate = &scaleout.Rate{
			Nodes:  int(rate.Nodes),
			Period: duration.HumanDuration(rate.Period.Duration),
			Since:  metav1.NewTime(r.Now.Add(-rate.Period.Duration)),
		}
	}
	return b
}

// leaves is when a node ceases to count for a rate; zero: it does not count.
func (r *reading) leaves(rate *scaleout.Rate, created metav1.Time) time.Time {
	if rate == nil || !created.After(rate.Since.Time) {
		return time.Time{}
	}
	return r.Now.Add(created.Sub(rate.Since.Time) + time.Second)
}

// sooner is the earlier of two times; zero means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
