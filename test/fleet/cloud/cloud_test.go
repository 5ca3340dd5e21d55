package cloud

import (
	"context"
	"errors"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// rig is a cloud with a clock of its own.
type rig struct {
	*Cloud
	t       *testing.T
	cluster *fake.Clientset
	clock   time.Time
}

func newRig(t *testing.T, groups ...Group) *rig {
	r := &rig{t: t, cluster: fake.NewClientset(), clock: time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)}
	r.restart(groups...)
	return r
}

// restart is a new process on the same cluster.
func (r *rig) restart(groups ...Group) {
	r.Cloud = New(r.cluster.CoreV1().Nodes(), func() time.Time { return r.clock }, groups)
}

func (r *rig) step() State {
	r.t.Helper()
	if err := r.Step(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	return r.States()[0]
}

func (r *rig) ask(desired int) {
	r.t.Helper()
	if err := r.SetDesired("h100", desired); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) nodes() []corev1.Node {
	r.t.Helper()
	list, err := r.cluster.CoreV1().Nodes().List(r.t.Context(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return list.Items
}

// joined and booting are a group's machines with and without a node.
func joined(s State) (ids []string) {
	for _, instance := range s.Instances {
		if instance.Node != "" {
			ids = append(ids, instance.ID)
		}
	}
	return ids
}

func booting(s State) int { return len(s.Instances) - len(joined(s)) }

func h100() Group {
	return Group{
		Name: "h100", Max: 5, InstanceType: "p5.48xlarge", CapacityType: "SPOT",
		Labels: map[string]string{"team": "one"},
		Taints: []corev1.Taint{{Key: "startup", Value: "yes", Effect: corev1.TaintEffectNoSchedule}},
		Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("100"),
		},
		GPUs: 8, BootDelay: metav1.Duration{Duration: time.Minute}, SliceDelay: metav1.Duration{Duration: 5 * time.Second},
	}
}

func TestMachinesBootAfterAWhile(t *testing.T) {
	r := newRig(t, h100())
	r.step()
	r.ask(2)
	if s := r.step(); booting(s) != 2 || len(joined(s)) != 0 {
		t.Errorf("at once: %+v", s)
	}
	r.clock = r.clock.Add(59 * time.Second)
	if s := r.step(); len(joined(s)) != 0 {
		t.Errorf("a second early: %+v", s)
	}
	r.clock = r.clock.Add(time.Second)
	if s := r.step(); booting(s) != 0 || len(joined(s)) != 2 {
		t.Errorf("after a minute: %+v", s)
	}
	if s := r.step(); len(joined(s)) != 2 || booting(s) != 0 {
		t.Errorf("and then: %+v", s)
	}
}

func TestANodeHasTheFieldsOfItsGroup(t *testing.T) {
	group := h100()
	group.BootDelay.Duration = 0
	r := newRig(t, group)
	r.step()
	r.ask(1)
	r.step()
	node := r.nodes()[0]
	for key, want := range map[string]string{
		LabelNodegroup: "h100", LabelCapacityType: "SPOT", corev1.LabelInstanceTypeStable: "p5.48xlarge", corev1.LabelHostname: node.Name, "team": "one",
	} {
		if node.Labels[key] != want {
			t.Errorf("label %s is %q, want %q", key, node.Labels[key], want)
		}
	}
	// As Cluster Autoscaler reads them: cloudprovider/aws/aws_cloud_provider.go, AwsRefFromProviderId.
	if id := node.Spec.ProviderID; !regexp.MustCompile(`^aws:///sim-1a/i-[0-9a-f]{17}$`).MatchString(id) {
		t.Errorf("the provider ID is %s", id)
	}
	if instance := joined(r.step())[0]; instance != InstanceOf(&node) {
		t.Errorf("the cloud calls it %s, the node %s", instance, node.Spec.ProviderID)
	}
	if len(node.Spec.Taints) != 1 || len(node.Status.Conditions) != 0 {
		t.Errorf("the node has %+v and %+v", node.Spec.Taints, node.Status.Conditions)
	}
	if _, has := node.Status.Allocatable["nvidia.com/gpu"]; has {
		t.Error("the node has GPUs by number")
	}
	if node.Annotations[AnnotationMachine] != "p5.48xlarge" {
		t.Errorf("the machine is %q", node.Annotations[AnnotationMachine])
	}
	if delay, ever, err := SliceDelay(&node); delay != 5*time.Second || !ever || err != nil {
		t.Errorf("slices come after %s, %t, %v", delay, ever, err)
	}
}

func TestAnotherMachineThanPromised(t *testing.T) {
	group := h100()
	group.BootDelay.Duration, group.Machine, group.NoSlices = 0, "g5.12xlarge", true
	r := newRig(t, group)
	r.step()
	r.ask(1)
	r.step()
	node := r.nodes()[0]
	if node.Annotations[AnnotationMachine] != "g5.12xlarge" || node.Labels[corev1.LabelInstanceTypeStable] != "p5.48xlarge" {
		t.Errorf("the node has %v and %v", node.Annotations, node.Labels)
	}
	if _, ever, err := SliceDelay(&node); ever || err != nil {
		t.Errorf("slices come: %t, %v", ever, err)
	}
}

func TestMachinesThatAreNotToBeHad(t *testing.T) {
	r := newRig(t, h100())
	r.step()
	r.ask(1)
	r.step()
	group := h100()
	group.Failure = &Failure{Code: "InsufficientInstanceCapacity", Message: "none left"}
	if err := r.Put(group); err != nil {
		t.Fatal(err)
	}
	r.ask(3)
	if s := r.step(); s.Failed != 3 || booting(s) != 0 || s.Desired != 3 {
		t.Errorf("with a failure: %+v", s)
	}
	r.ask(0)
	if s := r.step(); s.Failed != 0 {
		t.Errorf("without a demand: %+v", s)
	}
	if err := r.Put(h100()); err != nil {
		t.Fatal(err)
	}
	r.ask(1)
	if s := r.step(); booting(s) != 1 {
		t.Errorf("without the failure: %+v", s)
	}
}

func TestGroupsGetSmaller(t *testing.T) {
	group := h100()
	group.BootDelay.Duration = 0
	r := newRig(t, group)
	r.step()
	r.ask(3)
	if err := r.Terminate(t.Context(), joined(r.step())[0]); err != nil {
		t.Fatal(err)
	}
	if s := r.step(); s.Desired != 2 || len(joined(s)) != 2 || booting(s) != 0 {
		t.Errorf("after a termination: %+v", s)
	}
	if err := r.cluster.CoreV1().Nodes().Delete(t.Context(), r.nodes()[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if s := r.step(); s.Desired != 1 || len(joined(s)) != 1 || booting(s) != 0 {
		t.Errorf("after a node was deleted: %+v", s)
	}
	r.ask(0)
	if s := r.step(); len(joined(s)) != 0 || len(r.nodes()) != 0 {
		t.Errorf("without a demand: %+v, %d nodes", s, len(r.nodes()))
	}
	if err := r.Put(h100()); err != nil {
		t.Fatal(err)
	}
	r.ask(2)
	if err := r.Terminate(t.Context(), r.step().Instances[0].ID); err != nil {
		t.Fatal(err)
	}
	if s := r.step(); s.Desired != 1 || booting(s) != 1 {
		t.Errorf("after the termination of one that boots: %+v", s)
	}
	if err := r.Terminate(t.Context(), "i-unknown"); !errors.Is(err, ErrNoInstance) {
		t.Errorf("an unknown machine gives %v", err)
	}
}

func TestARestartKeepsTheMachines(t *testing.T) {
	group := h100()
	group.BootDelay.Duration = 0
	r := newRig(t, group)
	r.step()
	r.ask(2)
	r.step()
	r.restart(group)
	if s := r.step(); s.Desired != 2 || len(joined(s)) != 2 || len(r.nodes()) != 2 {
		t.Errorf("after a restart: %+v, %d nodes", s, len(r.nodes()))
	}
}

func TestTheCloudByHTTP(t *testing.T) {
	r := newRig(t)
	server := httptest.NewServer(r.Handler())
	defer server.Close()
	client, err := NewClient(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	group := h100()
	group.BootDelay.Duration = 0
	for _, step := range []struct {
		name string
		do   func() error
		want string
	}{
		{"set up", func() error { return client.Put(ctx, group) }, ""},
		{"no limits", func() error { return client.Put(ctx, Group{Name: "h100", InstanceType: "p5.48xlarge"}) }, "allocatable has no cpu"},
		{"a bad name", func() error { return client.Put(ctx, Group{Name: "A_", InstanceType: "x"}) }, "lower-case"},
		{"min over max", func() error { return client.Put(ctx, Group{Name: "a", Min: 2, Max: 1, InstanceType: "x"}) }, "min 2 and max 1"},
		{"ask", func() error { return client.SetDesired(ctx, "h100", 1) }, ""},
		{"ask for too many", func() error { return client.SetDesired(ctx, "h100", 6) }, "which allows 0 to 5"},
		{"ask an unknown group", func() error { return client.SetDesired(ctx, "a100", 1) }, "no such node group"},
	} {
		if err := step.do(); (err == nil) != (step.want == "") || err != nil && !strings.Contains(err.Error(), step.want) {
			t.Errorf("%s: %v, want %q", step.name, err, step.want)
		}
	}
	r.step()
	states, err := client.Groups(ctx)
	if err != nil || len(states) != 1 || len(joined(states[0])) != 1 || states[0].GPUs != 8 || states[0].Desired != 1 {
		t.Fatalf("got %+v, %v", states, err)
	}
	if err := client.Remove(ctx, "h100"); err != nil || len(r.nodes()) != 0 || len(r.States()) != 0 {
		t.Errorf("after the removal: %v, %d nodes", err, len(r.nodes()))
	}
	if err := client.Terminate(ctx, joined(states[0])[0]); err == nil || !strings.Contains(err.Error(), ErrNoInstance.Error()) {
		t.Errorf("a machine that is gone gives %v", err)
	}
	if _, err := NewClient("127.0.0.1:1"); err == nil {
		t.Error("an address without scheme is taken")
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newRig(t).Run(ctx, time.Millisecond); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
