package migrate

import (
	"bytes"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/test/fixture"
)

func TestPlans(t *testing.T) {
	gpus := func(n string) corev1.ResourceList {
		return corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(n)}
	}
	present := map[string]string{"nvidia.com/gpu.present": "true"}
	operator := Plugin{"gpu-operator", "nvidia-device-plugin-daemonset", map[string]string{labelOperator: "true"}}
	own := Plugin{"kube-system", "nvidia-device-plugin", nil}
	nodes := []Machine{
		{Name: "node-busy", Resources: gpus("8"), Pods: []string{"research/llm-1", "research/llm-0"}},
		{Name: "node-idle", Resources: gpus("8"), Cordoned: true},
		{Name: "node-done", Slices: 10},
		{Name: "node-cpu"},
		{Name: "node-sad", Labels: present},
	}
	for name, cluster := range map[string]Cluster{
		"chart":        {Nodes: nodes, Plugins: []Plugin{own}},
		"operator":     {Nodes: nodes, Plugins: []Plugin{operator}, Installed: true},
		"bottlerocket": {Nodes: nodes[:1], Installed: true},
		"both":         {Nodes: []Machine{{Name: "node-twice", Resources: gpus("1"), Slices: 1}}, Plugins: []Plugin{own}, Installed: true},
		"done":         {Nodes: nodes[2:4], Installed: true},
		"none":         {Nodes: nodes[3:4]},
	} {
		t.Run(name, func(t *testing.T) {
			plan := NewPlan(cluster)
			for _, width := range []int{0, 40} {
				var out bytes.Buffer
				if err := plan.Write(&out, terminal.Screen{Width: width}); err != nil {
					t.Fatal(err)
				}
				fixture.Golden(t, fmt.Sprintf("plan-%s-%d", name, width), out.String())
			}
		})
	}
}

func TestNamesOfManyPodsAreCounted(t *testing.T) {
	node := Machine{Name: "n", Resources: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("100")}}
	for i := range 25 {
		node.Pods = append(node.Pods, fmt.Sprintf("ns/pod-%02d", i))
	}
	var out bytes.Buffer
	if err := NewPlan(Cluster{Nodes: []Machine{node}}).Write(&out, terminal.Screen{}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(out.Bytes(), []byte("ns/pod-09 and 15 more:")) {
		t.Errorf("got %s", out.String())
	}
}

func TestDevicePluginsAreKnownByTheirImage(t *testing.T) {
	for name, test := range map[string]struct {
		container corev1.Container
		want      bool
	}{
		"NVIDIA's chart":        {corev1.Container{Name: "nvidia-device-plugin-ctr", Image: "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"}, true},
		"a mirror":              {corev1.Container{Name: "a", Image: "registry.example.com/mirror/k8s-device-plugin@sha256:0"}, true},
		"GPU Feature Discovery": {corev1.Container{Name: "gpu-feature-discovery", Image: "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"}, false},
		"MPS' daemon":           {corev1.Container{Name: "mps-control-daemon-ctr", Image: "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"}, false},
		"something else":        {corev1.Container{Name: "a", Image: "mica"}, false},
	} {
		if got := IsPlugin(corev1.PodSpec{Containers: []corev1.Container{test.container}}); got != test.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
