package offer

import (
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// A GPU that a device plugin gives out as well would be two pods'.
func TestNothingIsOfferedWhereADevicePluginGivesOutTheGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policies := apiserver.NewPolicies()
		r := newRig(t, "p5.48xlarge", func(o *Options) { o.Policies = policies })
		r.follow(t)
		r.watch(t)
		after(0)
		if len(r.offered()) == 0 {
			t.Fatal("a node without a device plugin offers nothing")
		}
		before := fixture.Claim("before", fixture.Result("gpu", "gpu-0"))
		_, err := r.preparer.Prepare(t.Context(), before)
		must(t, err)

		setResources(t, r.Client, corev1.ResourceList{"cpu": resource.MustParse("8"), "nvidia.com/gpu": resource.MustParse("8")})
		after(reportSpread)
		if pools := r.toPublish().Pools; len(pools) != 0 {
			t.Errorf("with a device plugin it offers %v", r.offered())
		}
		if warned := r.warned(); !strings.HasPrefix(warned, ReasonDevicePlugin+": ") || strings.Contains(warned, "\n") {
			t.Errorf("the node's events are %q", warned)
		}
		if said := policies.Node(fixture.NodeName).Withheld; !strings.Contains(said, "its status has nvidia.com/gpu: 8") {
			t.Errorf("the node's GPUNode says %q", said)
		}
		_, err = r.preparer.Prepare(t.Context(), fixture.Claim("later", fixture.Result("gpu", "gpu-1")))
		fixture.Sentence(t, err, "claim default/later", "nvidia.com/gpu: 8", "remove the device plugin from the node")
		if _, err = r.preparer.Prepare(t.Context(), before); err != nil {
			t.Errorf("a claim that was prepared before: %v", err)
		}

		setResources(t, r.Client, corev1.ResourceList{"cpu": resource.MustParse("8"), "nvidia.com/gpu": resource.MustParse("0")})
		after(reportSpread)
		if len(r.offered()) == 0 {
			t.Error("without the device plugin it still offers nothing")
		}
		if said := policies.Node(fixture.NodeName).Withheld; said != "" {
			t.Errorf("without the device plugin the node's GPUNode says %q", said)
		}
	})
}

func TestADevicePluginIsIgnoredOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "p5.48xlarge", func(o *Options) { o.Policies, o.IgnoreDevicePlugin = apiserver.NewPolicies(), true })
		setResources(t, r.Client, corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")})
		r.follow(t)
		r.watch(t)
		after(0)
		if len(r.offered()) == 0 {
			t.Error("it offers nothing")
		}
	})
}

// setResources is what kubelet does when a device plugin comes or goes.
func setResources(t *testing.T, client kubernetes.Interface, capacity corev1.ResourceList) {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), fixture.NodeName, metav1.GetOptions{})
	must(t, err)
	node.Status.Capacity = capacity
	_, err = client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	must(t, err)
}

func TestResourcesOfADevicePlugin(t *testing.T) {
	for name, test := range map[string]struct {
		capacity, allocatable string
		has                   bool
	}{
		"nvidia.com/gpu":                {"8", "8", true},
		"nvidia.com/gpu.shared":         {"32", "32", true},
		"nvidia.com/mig-1g.10gb":        {"7", "7", true},
		"nvidia.com/mig-1g.10gb.me":     {"0", "1", true},
		"nvidia.com/mig-3g.40gb.shared": {"4", "0", true}, // it does not answer, and pods have it
		"nvidia.com/mig-7g.80gb":        {"0", "0", false},
		"nvidia.com/gpumem":             {"80000", "80000", false}, // of another scheduler, beside nvidia.com/gpu
		"nvidia.com/GH100_H100_SXM5":    {"1", "1", false},         // passed through, unseen by NVML
		"example.com/gpu":               {"8", "8", false},
		"cpu":                           {"8", "8", false},
		"deviceclass.resource.kubernetes.io/gpu.nvidia.com": {"1", "1", false},
	} {
		node := &corev1.Node{Status: corev1.NodeStatus{
			Capacity:    corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(test.capacity)},
			Allocatable: corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(test.allocatable)},
		}}
		if has := devicePluginHas(node); (len(has) != 0) != test.has {
			t.Errorf("%s: got %v", name, has)
		}
	}
}
