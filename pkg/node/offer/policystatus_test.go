package offer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// reporting are nodes that go by a policy p and report on it until the test ends.
func reporting(t *testing.T, api *apiserver.Server, policies *apiserver.Policies, count int) (tell func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		group.Wait()
	})
	all := make([]*policyReports, count)
	for i := range all {
		name := fmt.Sprintf("node-%03d", i)
		must(t, api.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
		all[i] = newPolicyReports(policies, api, name)
		all[i].view = newPolicyView(policies, api, name, func() {}, all[i].wake)
		must(t, all[i].view.node.Replace([]any{&corev1.Node{}}, ""))
		ended := func(err error) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s ended with %v", name, err)
			}
		}
		group.Go(func() { ended(all[i].view.watchPolicies(ctx)) })
		group.Go(func() { ended(all[i].run(ctx)) })
	}
	return func() {
		now, err := policies.Get(ctx, "p", metav1.GetOptions{})
		must(t, err)
		for _, r := range all {
			r.set(now, nil)
		}
	}
}

// The API server sends every write to all nodes, so a few a second are many.
func TestManyNodesDoNotFloodTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 150
		api, policies := apiserver.New(), apiserver.NewPolicies()
		policies.BeforeWrite = func() { time.Sleep(10 * time.Millisecond) }
		tell := reporting(t, api, policies, nodes)
		for generation, spec := range []string{"{shapes: {whole: {}}}", "{shapes: {mig: {}}}"} {
			policies.Put(t, "p", spec)
			after(time.Second)
			policies.Writes()
			tell()
			after(10 * time.Minute)
			status := policies.Status("p")
			if len(status.Nodes) != v1alpha1.MaxNodeStatuses || slices.ContainsFunc(status.Nodes, func(n v1alpha1.NodeStatus) bool { return n.ObservedGeneration != int64(generation+1) }) {
				t.Errorf("generation %d: got %+v", generation, status)
			}
			if writes := policies.Writes(); writes > 2*nodes {
				t.Errorf("generation %d: %d writes by %d nodes", generation, writes, nodes)
			}
		}
	})
}

func TestEntriesOfNodesThatAreGoneAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, policies := apiserver.New(), apiserver.NewPolicies()
		policies.Put(t, "p", "{shapes: {whole: {}}}")
		tell := reporting(t, api, policies, 3)
		must(t, api.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "without-plugin"}}))
		policies.SetStatus("p", v1alpha1.GPUPolicyStatus{Nodes: []v1alpha1.NodeStatus{{Name: "gone", Message: "it is too old"}, {Name: "without-plugin"}}})
		after(time.Second)
		tell()
		after(time.Minute)
		if status := policies.Status("p"); len(status.Nodes) != 5 || status.Refused != 1 {
			t.Errorf("got %+v", status)
		}
		after(24 * goneNodeInterval)
		if status := policies.Status("p"); len(status.Nodes) != 4 || status.Applied != 4 || status.Refused != 0 || status.Conditions[0].Status != metav1.ConditionTrue {
			t.Errorf("got %+v", status)
		}
	})
}
