package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/crd"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/kubectl/doctor"
)

// surveyOptions say where things are.
type surveyOptions struct {
	driver, autoscalerNamespace, kueueNamespace string
}

// survey reads what the doctor looks at.
type survey struct {
	client.Reader
	server discoverer
}

// discoverer asks the API server about itself.
type discoverer interface {
	// Version is the first that is asked: who cannot be told it cannot reach the cluster.
	Version(ctx context.Context) (string, error)
	// Resources of a group and version; none if it is not served.
	Resources(ctx context.Context, groupVersion string) ([]string, error)
	// Schemas is the document at crd.Path; nil if it is not served.
	Schemas(ctx context.Context) ([]byte, error)
	// Gates are the feature gates by name.
	Gates(ctx context.Context) (map[string]bool, error)
	// Now is its time when it answered last.
	Now() time.Time
}

// maxObjects bounds what is kept of one kind: a cluster of the largest supported size has 150,000 pods
// (Kubernetes' documentation, Considerations for large clusters).
const maxObjects = 200_000

// facts reads everything once. The error is for a cluster that cannot be reached.
func (s *survey) facts(ctx context.Context, o surveyOptions) (*doctor.Facts, error) {
	version, err := s.server.Version(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the API server for its version: %w", err)
	}
	f := &doctor.Facts{Driver: o.driver, Version: version, Now: s.server.Now(), Unseen: map[doctor.Kind]string{}}
	s.served(ctx, f)
	s.cluster(ctx, f, o)
	s.mica(ctx, f)
	s.workloads(ctx, f)
	s.kueue(ctx, f, o)
	s.claimed(ctx, f)
	return f, ctx.Err()
}

func (s *survey) served(ctx context.Context, f *doctor.Facts) {
	f.Served = map[string]bool{}
	for _, version := range []string{resourceapi.SchemeGroupVersion.String(), v1alpha1.GroupVersion.String(), admissionv1.SchemeGroupVersion.String()} {
		resources, err := s.server.Resources(ctx, version)
		note(f, doctor.KindDiscovery, err)
		for _, resource := range resources {
			f.Served[version+" "+resource] = true
		}
	}
	document, err := s.server.Schemas(ctx)
	if err == nil && document != nil {
		f.Lacking, err = crd.Lacking(document)
	}
	note(f, doctor.KindDiscovery, err)
	f.Gates, err = s.server.Gates(ctx)
	note(f, doctor.KindGates, err)
}

// cluster reads nodes and what runs on them.
func (s *survey) cluster(ctx context.Context, f *doctor.Facts, o surveyOptions) {
	s.each(ctx, f, doctor.KindNodes, func() client.ObjectList { return &corev1.NodeList{} }, func(object runtime.Object) {
		node := object.(*corev1.Node)
		node.ManagedFields, node.Status.Images = nil, nil
		// Others' annotations can be large, and no check looks at them.
		maps.DeleteFunc(node.Annotations, func(key, _ string) bool {
			return !slices.Contains([]string{v1alpha1.AnnotationProtected, v1alpha1.AnnotationScaleIn, v1alpha1.AnnotationHeldUntil}, key)
		})
		f.Nodes = append(f.Nodes, *node)
	})
	s.each(ctx, f, doctor.KindSlices, func() client.ObjectList { return &resourceapi.ResourceSliceList{} }, func(object runtime.Object) {
		f.AddSlice(object.(*resourceapi.ResourceSlice))
	})
	s.each(ctx, f, doctor.KindPods, func() client.ObjectList { return &corev1.PodList{} }, func(object runtime.Object) { f.AddPod(object.(*corev1.Pod)) })
	s.each(ctx, f, doctor.KindLeases, func() client.ObjectList { return &coordinationv1.LeaseList{} }, func(object runtime.Object) {
		addLease(f, object.(*coordinationv1.Lease))
	}, client.InNamespace(corev1.NamespaceNodeLease))
	s.each(ctx, f, doctor.KindDaemonSets, func() client.ObjectList { return &appsv1.DaemonSetList{} }, func(object runtime.Object) {
		f.DaemonSets = append(f.DaemonSets, *object.(*appsv1.DaemonSet))
	})
	keep := func(object runtime.Object) { f.Deployments = append(f.Deployments, *object.(*appsv1.Deployment)) }
	s.each(ctx, f, doctor.KindDeployments, func() client.ObjectList { return &appsv1.DeploymentList{} }, keep, client.InNamespace(o.autoscalerNamespace))
	s.each(ctx, f, doctor.KindDeployments, func() client.ObjectList { return &appsv1.DeploymentList{} }, func(object runtime.Object) {
		if object.(*appsv1.Deployment).Namespace != o.autoscalerNamespace {
			keep(object)
		}
	}, client.MatchingLabels{"app.kubernetes.io/component": "controller"})
}

// addLease takes the time of the newest change from the API server, and that of renewal from kubelet.
func addLease(f *doctor.Facts, lease *coordinationv1.Lease) {
	var written time.Time
	for _, entry := range lease.ManagedFields {
		if entry.Time != nil && entry.Time.After(written) {
			written = entry.Time.Time
		}
	}
	if lease.Spec.RenewTime != nil && !written.IsZero() {
		f.AddLease(lease.Name, lease.Spec.RenewTime.Time, written)
	}
}

// mica reads the kinds of mica.gpu.
func (s *survey) mica(ctx context.Context, f *doctor.Facts) {
	s.each(ctx, f, doctor.KindGroups, func() client.ObjectList { return &v1alpha1.GPUNodeGroupList{} }, func(object runtime.Object) {
		group := object.(*v1alpha1.GPUNodeGroup)
		group.Status.Template = nil // up to 512 KiB, and nothing looks at it
		f.Groups = append(f.Groups, *group)
	})
	s.each(ctx, f, doctor.KindPolicies, func() client.ObjectList { return &v1alpha1.GPUPolicyList{} }, func(object runtime.Object) {
		f.Policies = append(f.Policies, *object.(*v1alpha1.GPUPolicy))
	})
	s.each(ctx, f, doctor.KindGPUNodes, func() client.ObjectList { return &v1alpha1.GPUNodeList{} }, func(object runtime.Object) {
		f.GPUNodes = append(f.GPUNodes, *object.(*v1alpha1.GPUNode))
	})
	s.each(ctx, f, doctor.KindHeadrooms, func() client.ObjectList { return &v1alpha1.GPUHeadroomList{} }, func(object runtime.Object) {
		f.Headrooms = append(f.Headrooms, *object.(*v1alpha1.GPUHeadroom))
	})
	s.each(ctx, f, doctor.KindBudgets, func() client.ObjectList { return &v1alpha1.GPUBudgetList{} }, func(object runtime.Object) {
		f.Budgets = append(f.Budgets, object.(*v1alpha1.GPUBudget).Name)
	})
}

func (s *survey) workloads(ctx context.Context, f *doctor.Facts) {
	s.each(ctx, f, doctor.KindTaintRules, func() client.ObjectList { return &resourceapi.DeviceTaintRuleList{} }, func(object runtime.Object) {
		f.TaintRules = append(f.TaintRules, *object.(*resourceapi.DeviceTaintRule))
	})
	s.each(ctx, f, doctor.KindAutoscalers, func() client.ObjectList { return &autoscalingv2.HorizontalPodAutoscalerList{} }, func(object runtime.Object) {
		scaler := object.(*autoscalingv2.HorizontalPodAutoscaler)
		target := scaler.Spec.ScaleTargetRef
		f.Scalers = append(f.Scalers, doctor.Scaler{Namespace: scaler.Namespace, Name: scaler.Name, Target: target.Kind + "/" + target.Name})
	})
}

// each reads a kind page by page. What is not served has no objects; why it could not be read is noted.
func (s *survey) each(ctx context.Context, f *doctor.Facts, kind doctor.Kind, empty func() client.ObjectList, use func(runtime.Object), options ...client.ListOption) {
	read := 0
	err := eachOf(ctx, s, empty, func(object runtime.Object) {
		if read++; read <= maxObjects {
			use(object)
		}
	}, options...)
	if note(f, kind, err); read > maxObjects {
		f.Unseen[kind] = fmt.Sprintf("there are %d, of which the first %d count", read, maxObjects)
	}
}

// note keeps why a kind could not be read.
func note(f *doctor.Facts, kind doctor.Kind, err error) {
	switch {
	case err == nil, meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return
	case apierrors.IsForbidden(err):
		f.Unseen[kind] = "you may not read them"
	case apierrors.IsResourceExpired(err):
		f.Unseen[kind] = "they changed too fast while they were read: try again"
	default:
		f.Unseen[kind] = excerpt.Of(err.Error(), 200)
	}
}
