package view

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// objects are the objects of the cluster that a view reads.
type objects struct {
	pods           corev1.PodList
	nodes          corev1.NodeList
	slices         resourceapi.ResourceSliceList
	claims         resourceapi.ResourceClaimList
	claimTemplates resourceapi.ResourceClaimTemplateList
	classes        resourceapi.DeviceClassList
	taintRules     resourceapi.DeviceTaintRuleList
	daemonSets     appsv1.DaemonSetList
	groups         v1alpha1.GPUNodeGroupList
	headrooms      v1alpha1.GPUHeadroomList
	budgets        v1alpha1.GPUBudgetList
	policies       v1alpha1.GPUPolicyList
	gpuNodes       v1alpha1.GPUNodeList
}

// list reads all objects. A cache returns its own, without a copy: to copy ten thousand pods takes longer than to plan
// them.
func list(ctx context.Context, reader client.Reader) (*objects, error) {
	all := &objects{}
	for _, kind := range []struct {
		name string
		list client.ObjectList
		// optional kinds may be missing from an API server.
		optional bool
	}{
		{"pods", &all.pods, false},
		{"nodes", &all.nodes, false},
		{"resourceslices", &all.slices, false},
		{"resourceclaims", &all.claims, false},
		{"resourceclaimtemplates", &all.claimTemplates, false},
		{"deviceclasses", &all.classes, false},
		{"devicetaintrules", &all.taintRules, true},
		{"daemonsets", &all.daemonSets, false},
		{"gpunodegroups", &all.groups, false},
		{"gpuheadrooms", &all.headrooms, true},
		{"gpubudgets", &all.budgets, true},
		{"gpupolicies", &all.policies, true},
		{"gpunodes", &all.gpuNodes, true},
	} {
		err := reader.List(ctx, kind.list, client.UnsafeDisableDeepCopy)
		if kind.optional && notServed(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list %s of the whole cluster: %w", kind.name, err)
		}
	}
	return all, nil
}

// notServed reports whether the API server does not know the kind.
func notServed(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }
