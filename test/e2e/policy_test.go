//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

const otherNode = "mica-e2e-other-node"

var dryRun = []string{metav1.DryRunAll}

// sliceOf is a slice without devices, so that no claim can be given one of it.
func (in *installation) sliceOf(change func(*resourcev1.ResourceSliceSpec)) *resourcev1.ResourceSlice {
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "mica-e2e-", Labels: map[string]string{testLabel: ""}},
		Spec: resourcev1.ResourceSliceSpec{
			Driver:   in.driver,
			NodeName: ptr.To(in.node),
			Pool:     resourcev1.ResourcePool{Name: in.node, ResourceSliceCount: 1},
		},
	}
	change(&slice.Spec)
	return slice
}

// asPlugin returns a client with a token of the plugin's ServiceAccount, bound to the
// plugin's pod as kubelet's are, or to nothing.
func (in *installation) asPlugin(t *testing.T, pod *corev1.Pod) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(in.configOfPlugin(t, pod))
	must(t, err, "make a client")
	return client
}

func (in *installation) configOfPlugin(t *testing.T, pod *corev1.Pod) *rest.Config {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	token, err := in.client.CoreV1().ServiceAccounts(in.plugin.namespace).CreateToken(t.Context(), in.serviceAccount, request, metav1.CreateOptions{})
	must(t, err, "request a token of ServiceAccount %s", in.serviceAccount)
	config := rest.AnonymousClientConfig(in.config)
	config.BearerToken = token.Status.Token
	return config
}

func TestPluginWritesSlicesOfItsOwnNodeOnly(t *testing.T) {
	t.Parallel()
	pod := under.awaitPlugin(t)
	plugin := under.asPlugin(t, pod)

	t.Run("its own node", func(t *testing.T) {
		slice, err := plugin.ResourceV1().ResourceSlices().Create(t.Context(), under.sliceOf(func(*resourcev1.ResourceSliceSpec) {}), metav1.CreateOptions{DryRun: dryRun})
		must(t, err, "create a slice")
		if slice.Spec.Driver != under.driver {
			t.Errorf("the slice has the driver %q", slice.Spec.Driver)
		}
	})
	refused := []struct {
		name   string
		change func(*resourcev1.ResourceSliceSpec)
		want   string
	}{
		{
			name:   "another node",
			change: func(spec *resourcev1.ResourceSliceSpec) { spec.NodeName = ptr.To(otherNode) },
			want:   "the Mica plugin on the node " + under.node + " may write only slices of that node, but this one is of the node " + otherNode,
		},
		{
			name:   "another node's pool",
			change: func(spec *resourcev1.ResourceSliceSpec) { spec.Pool.Name = otherNode },
			want:   "the Mica plugin on the node " + under.node + " may write only the pool of that name, but this slice is of the pool " + otherNode,
		},
		{
			name: "all nodes",
			change: func(spec *resourcev1.ResourceSliceSpec) {
				spec.NodeName, spec.AllNodes = nil, ptr.To(true)
			},
			want: "this one is not bound to a node by spec.nodeName",
		},
		{
			name: "nodes by a selector",
			change: func(spec *resourcev1.ResourceSliceSpec) {
				spec.NodeName = nil
				spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{under.node}}},
				}}}
			},
			want: "this one is not bound to a node by spec.nodeName",
		},
		{
			name: "nodes by device",
			change: func(spec *resourcev1.ResourceSliceSpec) {
				spec.NodeName, spec.PerDeviceNodeSelection = nil, ptr.To(true)
			},
			want: "this one is not bound to a node by spec.nodeName",
		},
		{
			name:   "another driver",
			change: func(spec *resourcev1.ResourceSliceSpec) { spec.Driver = "nic.example.com" },
			want:   "may write only slices of its own driver " + under.driver + ", but this one is of the driver nic.example.com",
		},
	}
	for _, test := range refused {
		t.Run(test.name, func(t *testing.T) {
			_, err := plugin.ResourceV1().ResourceSlices().Create(t.Context(), under.sliceOf(test.change), metav1.CreateOptions{DryRun: dryRun})
			expectForbidden(t, err, test.want)
		})
	}
	t.Run("a token without a node", func(t *testing.T) {
		_, err := under.asPlugin(t, nil).ResourceV1().ResourceSlices().Create(t.Context(), under.sliceOf(func(*resourcev1.ResourceSliceSpec) {}), metav1.CreateOptions{DryRun: dryRun})
		expectForbidden(t, err, "the Mica plugin's token is not bound to a pod on a node")
	})
}

// TestPluginLeavesSlicesOfOtherNodesAlone tries to change and to delete what exists.
func TestPluginLeavesSlicesOfOtherNodesAlone(t *testing.T) {
	t.Parallel()
	pod := under.awaitPlugin(t)
	plugin := under.asPlugin(t, pod)
	others := under.client.ResourceV1().ResourceSlices()
	slice, err := others.Create(t.Context(), under.sliceOf(func(spec *resourcev1.ResourceSliceSpec) { spec.NodeName = ptr.To(otherNode) }), metav1.CreateOptions{})
	must(t, err, "create another node's slice as the administrator")
	t.Cleanup(func() {
		if err := others.Delete(context.Background(), slice.Name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete the slice: %v", err)
		}
	})
	const want = "may write only slices of that node, but this one is of the node " + otherNode

	changed := slice.DeepCopy()
	changed.Spec.Pool.Generation++
	_, err = plugin.ResourceV1().ResourceSlices().Update(t.Context(), changed, metav1.UpdateOptions{})
	expectForbidden(t, err, want)
	err = plugin.ResourceV1().ResourceSlices().Delete(t.Context(), slice.Name, metav1.DeleteOptions{})
	expectForbidden(t, err, want)

	kept, err := others.Get(t.Context(), slice.Name, metav1.GetOptions{})
	must(t, err, "get the slice that the plugin may not delete")
	if kept.ResourceVersion != slice.ResourceVersion {
		t.Errorf("the slice was changed: %+v", kept)
	}
}

// TestPluginWritesDevicesOfItsOwnNodesClaimsOnly tries to write the status of devices
// in claims, and more than that.
func TestPluginWritesDevicesOfItsOwnNodesClaimsOnly(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 0)
	pod := s.awaitPlugin(t)
	plugin := s.asPlugin(t, pod).ResourceV1().ResourceClaims(s.namespace)

	write := func(claim *resourcev1.ResourceClaim, status fields) error {
		patch, err := mergePatch(fields{"status": status})
		must(t, err, "encode a patch")
		_, err = plugin.Patch(t.Context(), claim.Name, types.MergePatchType, patch, metav1.PatchOptions{DryRun: dryRun}, "status")
		return err
	}

	devices := fields{"devices": []resourcev1.AllocatedDeviceStatus{{Driver: s.driver, Pool: s.node, Device: noDevice}}}
	own := s.allocateNothing("own", s.node)
	must(t, write(own, devices), "write the status of a claim of the plugin's node")
	expectInvalid(t, write(own, fields{"allocation": nil}), `changing status.allocation or status.reservedFor requires resource="resourceclaims/binding"`)
	expectInvalid(t, write(s.allocateNothing("other", otherNode), devices), `cannot arbitrary-node:patch resource "resourceclaims/driver"`)
	_, err := plugin.UpdateStatus(t.Context(), own, metav1.UpdateOptions{DryRun: dryRun})
	expectForbidden(t, err, `cannot update resource "resourceclaims/status"`)
}

// expectInvalid wants the answer that the API server gives where rights depend on content.
func expectInvalid(t *testing.T, err error, want string) {
	t.Helper()
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("the API server answered %v, want a refusal with: %s", err, want)
	}
}

// noDevice is the name of a device that no node has.
const noDevice = "mica-e2e-none"

// allocateNothing makes a claim that is allocated on a node and has no device of it.
func (s *scenario) allocateNothing(name, node string) *resourcev1.ResourceClaim {
	s.Helper()
	claim := s.createClaim(name, s.claimFor(1))
	claim.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{
			Request: requestName, Driver: s.driver, Pool: s.node, Device: noDevice,
		}}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}},
	}
	claim, err := s.client.ResourceV1().ResourceClaims(s.namespace).UpdateStatus(s.Context(), claim, metav1.UpdateOptions{})
	must(s, err, "allocate claim %s", name)
	return claim
}

// TestPluginWritesItsOwnGPUNodeOnly tries to say something of another node, and of a policy.
func TestPluginWritesItsOwnGPUNodeOnly(t *testing.T) {
	t.Parallel()
	pod := under.awaitPlugin(t)
	client, err := dynamic.NewForConfig(under.configOfPlugin(t, pod))
	must(t, err, "make a client")
	apply := func(name string) error {
		_, err := client.Resource(gpuNodes).Apply(t.Context(), name, &unstructured.Unstructured{Object: fields{
			"apiVersion": "mica.gpu/v1alpha1", "kind": "GPUNode", "metadata": fields{"name": name},
		}}, metav1.ApplyOptions{FieldManager: "mica-e2e", DryRun: dryRun})
		return err
	}
	must(t, apply(under.node), "write the GPUNode of the plugin's node")
	expectForbidden(t, apply(otherNode), "the Mica plugin on the node "+under.node+" may write only the GPUNode of that name, but this one is "+otherNode)
	expectForbidden(t, client.Resource(gpuNodes).Delete(t.Context(), under.node, metav1.DeleteOptions{DryRun: dryRun}), "gpunodes.mica.gpu")
	_, err = client.Resource(gpuPolicies).Patch(t.Context(), "any", types.MergePatchType, []byte(`{"status":{"applied":1}}`), metav1.PatchOptions{DryRun: dryRun}, "status")
	expectForbidden(t, err, "gpupolicies.mica.gpu")
}

// TestPluginHasNoOtherRights samples what the plugin's ServiceAccount must not do.
func TestPluginHasNoOtherRights(t *testing.T) {
	t.Parallel()
	pod := under.awaitPlugin(t)
	plugin := under.asPlugin(t, pod)
	_, err := plugin.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
	expectForbidden(t, err, "secrets is forbidden")
	_, err = plugin.CoreV1().Pods(under.plugin.namespace).List(t.Context(), metav1.ListOptions{})
	expectForbidden(t, err, "pods is forbidden")
	_, err = plugin.ResourceV1().ResourceClaims("").List(t.Context(), metav1.ListOptions{})
	expectForbidden(t, err, "resourceclaims.resource.k8s.io is forbidden")
}

func expectForbidden(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case err == nil:
		t.Error("the API server accepted it")
	case !apierrors.IsForbidden(err):
		t.Errorf("the API server answered otherwise than with Forbidden: %v", err)
	case !strings.Contains(err.Error(), want):
		t.Errorf("the refusal says:\n%v\nwhich lacks: %s", err, want)
	}
}
