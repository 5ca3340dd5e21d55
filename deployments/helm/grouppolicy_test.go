package helm_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/test/admission"
)

// discoveredGroup is as the controller declares it.
func discoveredGroup(from string) *v1alpha1.GPUNodeGroup {
	return &v1alpha1.GPUNodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: "g", Generation: 1, Labels: map[string]string{v1alpha1.LabelDiscovered: from}},
		Spec: v1alpha1.GPUNodeGroupSpec{
			Provider: v1alpha1.NodeGroupProvider{EKS: &v1alpha1.EKSNodegroup{Nodegroup: "g"}},
			Pairing:  v1alpha1.PairingObserve,
		},
	}
}

var eksDiscovery = []string{"--set", "controller.discoverNodeGroups=eks,controller.eks.cluster=c,controller.eks.region=r"}

func expectGroupDecision(t *testing.T, policy admission.Policy, before, after *v1alpha1.GPUNodeGroup, words string) {
	t.Helper()
	r := admission.Review{Kind: "GPUNodeGroup", User: theController}
	for object, to := range map[*v1alpha1.GPUNodeGroup]*runtime.Object{before: &r.Old, after: &r.Object} {
		if object != nil {
			*to = object
		}
	}
	expectDecision(t, policy, r, words)
}

// A stolen token of the controller cannot declare a group that grows by itself.
func TestGroupPolicyOfNewGroups(t *testing.T) {
	with := func(change func(*v1alpha1.GPUNodeGroup)) func() *v1alpha1.GPUNodeGroup {
		return func() *v1alpha1.GPUNodeGroup {
			g := discoveredGroup("nodes")
			change(g)
			return g
		}
	}
	placeholders := []string{"--set", "controller.discoveredPairing=placeholder"}
	for name, test := range map[string]struct {
		group func() *v1alpha1.GPUNodeGroup
		args  []string
		want  string // part of the message; "" is accepted
	}{
		"discovered":            {with(func(*v1alpha1.GPUNodeGroup) {}), nil, ""},
		"without the label":     {with(func(g *v1alpha1.GPUNodeGroup) { g.Labels = nil }), nil, "that it has discovered"},
		"direct":                {with(func(g *v1alpha1.GPUNodeGroup) { g.Spec.Pairing = v1alpha1.PairingDirect }), nil, "with pairing observe only"},
		"direct, as allowed":    {with(func(g *v1alpha1.GPUNodeGroup) { g.Spec.Pairing = v1alpha1.PairingDirect }), placeholders, "with pairing observe or placeholder only"},
		"placeholder":           {with(func(g *v1alpha1.GPUNodeGroup) { g.Spec.Pairing = v1alpha1.PairingPlaceholder }), nil, "with pairing observe only"},
		"no pairing":            {with(func(g *v1alpha1.GPUNodeGroup) { g.Spec.Pairing = "" }), nil, "with pairing observe only"},
		"placeholder, as asked": {with(func(g *v1alpha1.GPUNodeGroup) { g.Spec.Pairing = v1alpha1.PairingPlaceholder }), placeholders, ""},
		"a minimum":             {with(func(g *v1alpha1.GPUNodeGroup) { g.Spec.Min = 5000 }), nil, "without min and max only"},
		"a maximum":             {with(func(g *v1alpha1.GPUNodeGroup) { g.Spec.Max = ptr.To(int32(5000)) }), nil, "without min and max only"},
		"other nodes": {with(func(g *v1alpha1.GPUNodeGroup) {
			g.Spec.Provider = v1alpha1.NodeGroupProvider{NodeSelector: map[string]string{"kubernetes.io/os": "linux"}}
		}), nil, "a managed node group of EKS"},
		"an end of nodes": {with(func(g *v1alpha1.GPUNodeGroup) { g.Spec.ScaleInAfter = &metav1.Duration{} }), nil, "without scaleInAfter"},
		"a price":         {with(func(g *v1alpha1.GPUNodeGroup) { g.Spec.PricePerHour = ptr.To(resource.MustParse("0")) }), nil, "pricePerHour"},
		"EKS's limits": {with(func(g *v1alpha1.GPUNodeGroup) {
			g.Labels[v1alpha1.LabelDiscovered], g.Spec.Min, g.Spec.Max = "eks", 1, ptr.To(int32(4))
		}), eksDiscovery, ""},
	} {
		t.Run(name, func(t *testing.T) {
			expectGroupDecision(t, renderedPolicy(t, "groups-", test.args...), nil, test.group(), test.want)
		})
	}
	if matched, _ := renderedPolicy(t, "groups-").Review(t, admission.Review{Kind: "GPUNodeGroup", Object: discoveredGroup(""), User: user.DefaultInfo{Name: "an administrator"}}); matched {
		t.Error("others than the controller are looked at")
	}
}

func TestGroupPolicyOfGroupsThatExist(t *testing.T) {
	policy := renderedPolicy(t, "groups-", eksDiscovery...)
	direct := func(g *v1alpha1.GPUNodeGroup) { g.Spec.Pairing, g.Spec.Max = v1alpha1.PairingDirect, ptr.To(int32(4)) }
	for name, test := range map[string]struct {
		before, change func(*v1alpha1.GPUNodeGroup)
		want           string
	}{
		"another type":           {nil, func(g *v1alpha1.GPUNodeGroup) { g.Spec.InstanceType = "p5e.48xlarge" }, ""},
		"EKS's new maximum":      {nil, func(g *v1alpha1.GPUNodeGroup) { g.Spec.Max = ptr.To(int32(9)) }, ""},
		"another pairing":        {nil, func(g *v1alpha1.GPUNodeGroup) { g.Spec.Pairing = v1alpha1.PairingDirect }, "may not change pairing"},
		"other nodes":            {nil, func(g *v1alpha1.GPUNodeGroup) { g.Spec.Provider.EKS.Nodegroup = "cpus" }, "may not change pairing, provider"},
		"nodes that end":         {direct, func(g *v1alpha1.GPUNodeGroup) { g.Spec.ScaleInAfter = &metav1.Duration{Duration: 1} }, "scaleInAfter"},
		"a price":                {nil, func(g *v1alpha1.GPUNodeGroup) { g.Spec.PricePerHour = ptr.To(resource.MustParse("0")) }, "pricePerHour"},
		"more of direct":         {direct, func(g *v1alpha1.GPUNodeGroup) { g.Spec.Max = ptr.To(int32(5)) }, "may not raise min and max"},
		"no maximum of direct":   {direct, func(g *v1alpha1.GPUNodeGroup) { g.Spec.Max = nil }, "may not raise min and max"},
		"a minimum of direct":    {direct, func(g *v1alpha1.GPUNodeGroup) { g.Spec.Min = 1 }, "may not raise min and max"},
		"less of direct":         {direct, func(g *v1alpha1.GPUNodeGroup) { g.Spec.Max = ptr.To(int32(3)) }, ""},
		"an administrator's":     {func(g *v1alpha1.GPUNodeGroup) { g.Labels = nil }, func(g *v1alpha1.GPUNodeGroup) {}, "that it has discovered"},
		"an administrator's own": {func(g *v1alpha1.GPUNodeGroup) { g.Labels = nil }, func(g *v1alpha1.GPUNodeGroup) { g.Labels = discoveredGroup("eks").Labels }, "that it has discovered"},
	} {
		t.Run(name, func(t *testing.T) {
			before := discoveredGroup("eks")
			if test.before != nil {
				test.before(before)
			}
			after := before.DeepCopy()
			test.change(after)
			expectGroupDecision(t, policy, before, after, test.want)
		})
	}
}

func TestGroupPolicyOfDeletion(t *testing.T) {
	policy := renderedPolicy(t, "groups-")
	changed := discoveredGroup("nodes")
	changed.Generation = 2
	for name, test := range map[string]struct {
		group *v1alpha1.GPUNodeGroup
		want  string
	}{
		"of live nodes":      {discoveredGroup("nodes"), ""},
		"changed since":      {changed, "that was never changed"},
		"of EKS":             {discoveredGroup("eks"), "declared of live nodes"},
		"an administrator's": {discoveredGroup(""), "that it has discovered"},
	} {
		t.Run(name, func(t *testing.T) {
			expectGroupDecision(t, policy, test.group, nil, test.want)
		})
	}
}

// Only the controller writes what makes a pod a placeholder.
func TestForgedPlaceholdersAreRefused(t *testing.T) {
	policy := renderedPolicy(t, "forged-")
	tenant := user.DefaultInfo{Name: "a tenant"}
	plain := func() *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "tenant", Labels: map[string]string{"a": "b"}}}
	}
	labeled := plain()
	labeled.Labels["mica.gpu/node-group"] = "gpus"
	forged := placeholder()
	forged.Namespace = "tenant"
	moved := placeholder()
	moved.Labels["mica.gpu/node-group"] = "other"
	touched := placeholder()
	touched.Finalizers = []string{"foregroundDeletion"}
	for name, test := range map[string]struct {
		before, after *corev1.Pod
		by            user.DefaultInfo
		refused       bool
	}{
		"a pod":                               {nil, plain(), tenant, false},
		"a label of the same name":            {nil, labeled, tenant, false},
		"a forged one":                        {nil, forged, tenant, true},
		"one beside the real ones":            {nil, placeholder(), tenant, true},
		"a pod that becomes one":              {plain(), forged, tenant, true},
		"a pod with the label":                {labeled, forged, tenant, true},
		"a real one for another group":        {placeholder(), moved, tenant, true},
		"the garbage collector at a real one": {placeholder(), touched, user.DefaultInfo{Name: "system:serviceaccount:kube-system:generic-garbage-collector"}, false},
		"the controller's":                    {nil, placeholder(), theController, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := admission.Review{Kind: "Pod", Namespace: test.after.Namespace, Object: test.after, User: test.by}
			if test.before != nil {
				r.Old = test.before
			}
			_, messages := policy.Review(t, r)
			if refused := strings.Join(messages, "\n"); strings.Contains(refused, "only the Mica controller creates those") != test.refused {
				t.Errorf("refused: %q", refused)
			}
		})
	}
}
