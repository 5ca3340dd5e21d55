package usage

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/test/fixture"
)

func TestThePluginsPodThatCanAnswerIsAsked(t *testing.T) {
	called := func(name string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Name = name } }
	starting := func(p *corev1.Pod) { p.Status.Conditions = nil }
	pending := func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} }
	newer := func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(t0.Add(time.Hour)) }
	ending := func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(t0)) }
	elsewhere := func(p *corev1.Pod) { p.Spec.NodeName = "n2" }
	another := func(p *corev1.Pod) { p.Labels = labels.Set{"app.kubernetes.io/component": "mps"} }
	foreign := func(p *corev1.Pod) { p.Namespace = "other" }
	silent := func(p *corev1.Pod) { p.Spec.Containers[0].Ports = p.Spec.Containers[0].Ports[:1] }
	type options = []func(*corev1.Pod)
	for name, test := range map[string]struct {
		pods []options
		want string
		err  []string
	}{
		"the only one":                {pods: []options{{called("a")}}, want: "mica/a"},
		"the one that is ready":       {pods: []options{{called("a"), newer, starting}, {called("b")}}, want: "mica/b"},
		"the newer of two":            {pods: []options{{called("b")}, {called("a"), newer}}, want: "mica/a"},
		"one that starts, not ends":   {pods: []options{{called("a"), newer, ending}, {called("b"), starting}}, want: "mica/b"},
		"one that ends, before none":  {pods: []options{{called("a"), newer, pending}, {called("b"), ending}}, want: "mica/b"},
		"none":                        {err: []string{"no pod in namespace mica", "component=kubelet-plugin"}},
		"others":                      {pods: []options{{called("a"), elsewhere}, {called("b"), another}, {called("c"), foreign}}, err: []string{"no pod in namespace mica"}},
		"one that does not run yet":   {pods: []options{{called("a"), pending}}, err: []string{"pod mica/a is Pending", "no address"}},
		"one without the metrics":     {pods: []options{{called("a"), silent}}, err: []string{"pod mica/a", "metrics are switched off", "metricsPort"}},
		"one that failed, of no more": {pods: []options{{called("a"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }}}, err: []string{"pod mica/a is Failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newIndexed(t)
			for _, options := range test.pods {
				r.add(t, pluginPod("n1", "10.0.0.1", 8080, options...))
			}
			got, err := r.options().cluster().target(t.Context(), "n1")
			if test.err != nil {
				fixture.Sentence(t, err, test.err...)
				return
			}
			if want := (target{pod: test.want, address: "10.0.0.1", port: 8080}); err != nil || got != want {
				t.Errorf("got %+v, %v, want %+v", got, err, want)
			}
		})
	}
}

func TestSharesAreThoseThatTakeAPartOfTheDevice(t *testing.T) {
	type devices = map[string]map[resourceapi.QualifiedName]resource.Quantity
	const device = "gpu-0-timeslice"
	one := amounts("shares=1")
	r := newIndexed(t,
		holder("a", devices{device + "/1": one, device + "/2": one, "gpu-1-timeslice/3": one}),
		holder("b", devices{device + "/4": one}),
		holder("admin", devices{device + "/5": one}, func(r *resourceapi.DeviceRequestAllocationResult) { r.AdminAccess = ptr.To(true) }),
		holder("foreign", devices{device + "/6": one}, func(r *resourceapi.DeviceRequestAllocationResult) { r.Driver = "other" }),
		holder("elsewhere", devices{device + "/7": one}, func(r *resourceapi.DeviceRequestAllocationResult) { r.Pool = "n2" }),
		&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "pending"}},
	)
	got, err := r.options().cluster().shares(t.Context(), "n1", device)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []shareKey{{"a", "1"}, {"a", "2"}, {"b", "4"}} {
		if _, found := got[want]; !found {
			t.Errorf("share %v is not counted", want)
		}
		delete(got, want)
	}
	if len(got) != 0 {
		t.Errorf("also counted: %v", got)
	}
}

func TestTheCapacityOfTheNewestSliceCounts(t *testing.T) {
	type devices = map[string]map[resourceapi.QualifiedName]resource.Quantity
	const device = "gpu-0-timeslice"
	foreign := poolSlice("foreign", 9, devices{device: amounts("shares=16")})
	foreign.Spec.Driver = "other"
	r := newIndexed(t, foreign,
		poolSlice("old", 1, devices{device: amounts("shares=4")}),
		poolSlice("new", 2, devices{device: amounts("shares=8"), "gpu-1": nil}),
		poolSlice("rest", 2, devices{"gpu-2": nil}),
	)
	c := r.options().cluster()
	got, err := c.capacity(t.Context(), "n1", device)
	if shares := got["shares"].Value; err != nil || shares.Value() != 8 {
		t.Errorf("got %v, %v", got, err)
	}
	_, err = c.capacity(t.Context(), "n1", "gpu-7-mps")
	fixture.Sentence(t, err, "no ResourceSlice of pool n1 has it")
}

func TestASharesPartHasToBeKnown(t *testing.T) {
	type devices = map[string]map[resourceapi.QualifiedName]resource.Quantity
	const device = "gpu-0-timeslice"
	slice := poolSlice("s", 1, devices{device: amounts("shares=4", "memory=80Gi")})
	own := holder("own", devices{device + "/1": amounts("shares=1", "memory=20Gi")})
	other := holder("other", devices{device + "/2": amounts("cores=5")})
	h := held(ofClaims(own))[0]

	_, _, err := newIndexed(t).options().cluster().divide(t.Context(), h)
	fixture.Sentence(t, err, "read how device gpu-0-timeslice of node n1 is shared", "no ResourceSlice")
	_, _, err = newIndexed(t, slice, own, other).options().cluster().divide(t.Context(), h)
	fixture.Sentence(t, err, "the share of device gpu-0-timeslice of node n1 that the claim of UID other holds", "delete its pods")
	if !errors.Is(err, errNoFraction) {
		t.Errorf("the error is %v", err)
	}
	// The cache may have the workload's pods before the allocation of their claim.
	got, together, err := newIndexed(t, slice).options().cluster().divide(t.Context(), h)
	if err != nil || got != (fraction{0.25, 0.25}) || together != 0.25 {
		t.Errorf("got %v of %v, %v", got, together, err)
	}
}

// Where the number of claims is not limited, their parts are equal, whatever memory some request.
func TestUnlimitedSharesAreEqual(t *testing.T) {
	type devices = map[string]map[resourceapi.QualifiedName]resource.Quantity
	slice := poolSlice("s", 1, devices{"gpu-0": amounts("memory=80Gi"), "gpu-1": nil, "gpu-2": amounts("memory=80Gi", "shares=4")})
	for _, tc := range []struct {
		device      string
		own, others string
		want        fraction
		together    float64
	}{
		{"gpu-0", "memory=0", "memory=20Gi", fraction{0.25, 0.25}, 1},
		{"gpu-0", "memory=20Gi", "memory=0", fraction{0.25, 0.25}, 1},
		{"gpu-0", "memory=20Gi", "memory=10Gi", fraction{0.25, 0.25}, 0.625},
		{"gpu-1", "memory=0", "memory=0", fraction{0.25, 0.25}, 1},
		{"gpu-2", "shares=1", "shares=1", fraction{0.25, 0.25}, 1},
	} {
		own := holder("own", devices{tc.device + "/0": amounts(tc.own)})
		objects := []client.Object{slice, own}
		for _, name := range []string{"a", "b", "c"} {
			objects = append(objects, holder(name, devices{tc.device + "/" + name: amounts(tc.others)}))
		}
		got, together, err := newIndexed(t, objects...).options().cluster().divide(t.Context(), held(ofClaims(own))[0])
		if err != nil || got != tc.want || together != tc.together {
			t.Errorf("%+v: got %v of %v, %v", tc, got, together, err)
		}
	}
}
