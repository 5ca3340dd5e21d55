package offer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/node/podresources"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// kubelet says which containers have devices of device plugins.
type kubelet struct {
	mu    sync.Mutex
	uses  []podresources.Use
	err   error
	asked int
}

func (k *kubelet) Uses(context.Context) ([]podresources.Use, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	return slices.Clone(k.uses), k.err
}

func (k *kubelet) questions() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked
}

// says changes what it says; each device is one pod's, in a resource of NVIDIA's device plugin.
func (k *kubelet) says(err error, devices ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err, k.uses = err, nil
	for _, device := range devices {
		k.uses = append(k.uses, podresources.Use{Pod: types.NamespacedName{Namespace: "train", Name: "old"}, Resource: "nvidia.com/gpu", Device: device})
	}
}

func newLeftoverRig(t *testing.T) (*rig, *kubelet, *apiserver.Policies) {
	t.Helper()
	containers, policies := &kubelet{}, apiserver.NewPolicies()
	r := newRig(t, "p5.48xlarge", func(o *Options) { o.Policies, o.Containers = policies, containers })
	return r, containers, policies
}

// devicesOf are the offered devices of a GPU.
func (r *rig) devicesOf(name string) (devices []string) {
	for _, offered := range r.offered() {
		if offered == name || strings.HasPrefix(offered, name+"-") {
			devices = append(devices, offered)
		}
	}
	return devices
}

// kubelet forgets the resource five minutes after its device plugin has gone, or at once when it
// restarts. The pods run on.
func TestGPUsThatADevicePluginHasLeftInUseAreNotOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, containers, policies := newLeftoverRig(t)
		setResources(t, r.Client, corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")})
		containers.says(nil, r.node.GPUs[1].UUID, r.node.GPUs[2].UUID+"::3", r.node.GPUs[2].UUID+"::4")
		r.follow(t)
		r.watch(t)
		after(0)
		setResources(t, r.Client, corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")})
		after(leftoverSettle - time.Second)
		if offered := r.offered(); len(offered) != 0 {
			t.Errorf("before kubelet can have read all of its pods again it offers %v", offered)
		}
		after(2*leftoverSettle + reportSpread)
		for name, free := range map[string]bool{"gpu-0": true, "gpu-1": false, "gpu-2": false, "gpu-3": true} {
			if devices := r.devicesOf(name); (len(devices) > 0) != free {
				t.Errorf("of %s it offers %v", name, devices)
			}
		}
		if warned := r.warned(); !strings.Contains(warned, ReasonTaken+": GPUs of this node are in use") || !strings.Contains(warned, "gpu-1 by pod train/old from a device plugin") {
			t.Errorf("the node's events are %q", warned)
		}
		_, err := r.preparer.Prepare(t.Context(), fixture.Claim("late", fixture.Result("gpu", "gpu-1")))
		fixture.Sentence(t, err, "claim default/late", "device gpu-1 is not offered", "gpu-1 by pod train/old", "drain the node")
		if said := policies.Node(fixture.NodeName).Withheld; said != "" {
			t.Errorf("the node's GPUNode says %q, and it offers some", said)
		}

		// A kubelet that restarts lists some of its pods, or none.
		containers.says(errors.New("connection refused"))
		after(3 * leftoverSettle)
		containers.says(nil, r.node.GPUs[2].UUID+"::3")
		after(leftoverSettle - time.Second) // one look
		if devices := r.devicesOf("gpu-1"); len(devices) != 0 {
			t.Errorf("while kubelet starts it offers %v", devices)
		}
		containers.says(nil, r.node.GPUs[1].UUID, r.node.GPUs[2].UUID+"::3")
		after(3 * leftoverSettle)
		if devices := slices.Concat(r.devicesOf("gpu-1"), r.devicesOf("gpu-2")); len(devices) != 0 {
			t.Errorf("after kubelet's restart it offers %v", devices)
		}
		containers.says(nil, r.node.GPUs[2].UUID+"::3")
		after(3 * leftoverSettle)
		if len(r.devicesOf("gpu-1")) == 0 || len(r.devicesOf("gpu-2")) != 0 {
			t.Errorf("after the first pod's end it offers %v", r.offered())
		}
		containers.says(nil)
		after(3 * leftoverSettle)
		if len(r.devicesOf("gpu-2")) == 0 {
			t.Errorf("after the last pod's end it offers %v", r.offered())
		}
		asked := containers.questions()
		after(time.Hour)
		if more := containers.questions() - asked; more != 0 {
			t.Errorf("kubelet was asked %d more times", more)
		}
	})
}

// What is not understood is never taken for free.
func TestLeftoversThatAreNotUnderstood(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		device string
		text   string
	}{
		"a kubelet that does not answer":   {errors.New("no such file or directory"), "", "no such file or directory"},
		"a device with another name":       {nil, "nvidia0", `device "nvidia0"`},
		"a GPU that is not among the node": {nil, "GPU-12345678", `device "GPU-12345678"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, containers, policies := newLeftoverRig(t)
				containers.says(test.err, test.device)
				r.follow(t)
				r.watch(t)
				after(leftoverSettle + reportSpread)
				if offered := r.offered(); len(offered) != 0 {
					t.Errorf("it offers %v", offered)
				}
				if said := policies.Node(fixture.NodeName).Withheld; !strings.Contains(said, test.text) {
					t.Errorf("the node's GPUNode says %q", said)
				}
				if warned := r.warned(); strings.Count(warned, test.text) != 1 {
					t.Errorf("the node's events are %q", warned)
				}
				containers.says(nil)
				after(3 * leftoverSettle)
				if len(r.offered()) == 0 {
					t.Error("without leftovers it still offers nothing")
				}
			})
		})
	}
}

// A claim's device stays published, and goes on serving the claim.
func TestALeftoverOnAGPUOfAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, containers, _ := newLeftoverRig(t)
		r.follow(t)
		r.watch(t)
		after(0)
		claim := fixture.Claim("c", fixture.Result("gpu", "gpu-0"))
		_, err := r.preparer.Prepare(t.Context(), claim)
		must(t, err)
		setResources(t, r.Client, corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")})
		after(0)
		setResources(t, r.Client, corev1.ResourceList{})
		containers.says(nil, r.node.GPUs[0].UUID)
		after(3 * leftoverSettle)
		if devices := r.devicesOf("gpu-0"); !slices.Equal(devices, []string{"gpu-0"}) {
			t.Errorf("of gpu-0 it offers %v", devices)
		}
		if taints := r.tainted("gpu-0"); !slices.Equal(taints, []string{"mica.gpu/in-use=:NoSchedule"}) {
			t.Errorf("gpu-0 has the taints %v", taints)
		}
		if _, err := r.preparer.Prepare(t.Context(), claim); err != nil {
			t.Error(err)
		}
	})
}

// A container that has a MIG device leaves the rest of its GPU to others.
func TestALeftoverInAMIGDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, containers, _ := newLeftoverRig(t)
		r.live = true
		must(t, r.machine.SetMIGMode(0, true))
		start := 4
		made, err := r.machine.CreateInstance(0, "3g.40gb", &start)
		must(t, err)
		containers.says(nil, made.ComputeInstances[0].UUID)
		r.follow(t)
		r.watch(t)
		after(leftoverSettle)
		devices := r.devicesOf("gpu-0")
		if !slices.Contains(devices, "gpu-0-mig-3g40gb-9-0") || slices.ContainsFunc(devices, func(name string) bool { return strings.HasSuffix(name, "-4") || name == "gpu-0" }) {
			t.Errorf("of gpu-0 it offers %v", devices)
		}
	})
}
