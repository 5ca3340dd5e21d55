package pair

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
	"github.com/mica-gpu/mica/test/fixture"
)

// podGroup has two nodes, one of them without a host name label, taints, and a DaemonSet.
func podGroup() (*Situation, *view.Group) {
	group := &view.Group{
		Object: eksGroup("p5", "gpus-p5"),
		Template: &template.Template{Node: &corev1.Node{
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{
				{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule},
				{Key: v1alpha1.TaintStartup, Value: "yes", Effect: corev1.TaintEffectNoSchedule},
			}},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("191"), corev1.ResourceMemory: resource.MustParse("2000Gi"),
			}},
		}},
		Nodes: []view.NodeState{
			{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{corev1.LabelHostname: "host-one"}}}},
			{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "two"}}},
		},
	}
	group.Object.UID = "group-uid"
	daemon := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
	}}}}}
	s := &Situation{
		Now:         epoch,
		View:        &view.View{Snapshot: scaleout.Snapshot{Groups: []scaleout.Group{{Name: "p5", Pods: []*corev1.Pod{daemon}}}}},
		Placeholder: PlaceholderOptions{Namespace: "mica-system", Image: "mica-gpu/controller:v1", PriorityClass: "mica-placeholder"},
	}
	s.index = newIndex(s)
	return s, group
}

// Users and Cluster Autoscaler see the pod, so a file has all its fields.
func TestPlaceholderPod(t *testing.T) {
	s, group := podGroup()
	d := &placing{turn: turn{s: s, group: group}}
	pod := d.pod(scaleout.NewNode{
		Pods:  []types.NamespacedName{{Namespace: "a", Name: "train-0"}, {Namespace: "a", Name: "train-1"}},
		Kinds: []string{"k-12ab", "headroom/night"},
		Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("200"), corev1.ResourceMemory: resource.MustParse("100Gi"),
			corev1.ResourceEphemeralStorage: resource.MustParse("10Gi"), "nvidia.com/gpu": resource.MustParse("8"),
		},
	}, placeholderName("p5", 3))
	got, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	fixture.Golden(t, "placeholder.yaml", string(got))
}

func TestPlaceholderIsBounded(t *testing.T) {
	s, group := podGroup()
	group.Object.Name = "a." + strings.Repeat("long-name.", 6)[:58]
	d := &placing{turn: turn{s: s, group: group}}
	node := scaleout.NewNode{}
	for i := range 5000 {
		node.Pods = append(node.Pods, types.NamespacedName{Namespace: "namespace", Name: fmt.Sprintf("pod-%d", i)})
		node.Kinds = append(node.Kinds, fmt.Sprintf("headroom/%s-%d", strings.Repeat("n", 80), i))
	}
	pod := d.pod(node, placeholderName(group.Object.Name, 4999))
	if errs := validation.IsDNS1123Label(pod.Name); len(errs) > 0 {
		t.Errorf("name %q: %v", pod.Name, errs)
	}
	for key, value := range pod.Labels {
		if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
			t.Errorf("label %s=%q: %v", key, value, errs)
		}
	}
	for key, value := range pod.Annotations {
		if len(value) > 4096 {
			t.Errorf("annotation %s has %d bytes", key, len(value))
		}
	}
	if text := pod.Annotations[v1alpha1.AnnotationPods]; !strings.HasSuffix(text, " more") {
		t.Errorf("annotation does not tell of the pods that it leaves out: …%s", text[len(text)-40:])
	}
}

func TestRequestsFitBesideDaemons(t *testing.T) {
	s, group := podGroup()
	d := &placing{turn: turn{s: s, group: group}}
	for name, test := range map[string]struct {
		wanted, cpu string
		allocatable corev1.ResourceList
	}{
		"less than there is":    {"3", "3", group.Template.Node.Status.Allocatable},
		"more than there is":    {"500", "190", group.Template.Node.Status.Allocatable},
		"unknown":               {"500", "500", nil},
		"daemons take it all":   {"5", "", corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		"nothing is wanted":     {"0", "", group.Template.Node.Status.Allocatable},
		"the template is wrong": {"5", "", corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}},
	} {
		t.Run(name, func(t *testing.T) {
			group.Template = &template.Template{Node: &corev1.Node{Status: corev1.NodeStatus{Allocatable: test.allocatable}}}
			got := d.requests(scaleout.NewNode{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(test.wanted)}})
			cpu, ok := got[corev1.ResourceCPU]
			if ok != (test.cpu != "") || ok && cpu.Cmp(resource.MustParse(test.cpu)) != 0 {
				t.Errorf("requests %s CPUs, want %q", cpu.String(), test.cpu)
			}
		})
	}
}
