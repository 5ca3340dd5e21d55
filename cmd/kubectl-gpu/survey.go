package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/crd"
	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/fleet"
	"github.com/mica-gpu/mica/pkg/kubectl/doctor"
)

// survey reads the doctor's facts.
type survey struct {
	client.Reader
	server discoverer
}

// discoverer asks the API server about itself.
type discoverer interface {
	// Version is called first: its error means that the cluster cannot be reached.
	Version(ctx context.Context) (string, error)
	// Resources of a group and version; none if it is not served.
	Resources(ctx context.Context, groupVersion string) ([]string, error)
	// Schemas is the document at crd.Path; nil if it is not served.
	Schemas(ctx context.Context) ([]byte, error)
	// Gates are the feature gates by name.
	Gates(ctx context.Context) (map[string]bool, error)
	// Now is the server's time at its last answer.
	Now() time.Time
}

// maxObjects bounds the objects per kind. The largest supported cluster has 150,000 pods (Kubernetes'
// documentation, Considerations for large clusters).
const maxObjects = 200_000

// facts reads everything once. It fails only if the cluster cannot be reached.
func (s *survey) facts(ctx context.Context, driver string) (*doctor.Facts, error) {
	version, err := s.server.Version(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the API server for its version: %w", err)
	}
	f := &doctor.Facts{Driver: driver, Version: version, Now: s.server.Now(), Unseen: map[doctor.Kind]string{}}
	s.served(ctx, f)
	s.cluster(ctx, f)
	s.mica(ctx, f)
	s.templates(ctx, f)
	return f, ctx.Err()
}

func (s *survey) served(ctx context.Context, f *doctor.Facts) {
	f.Served = map[string]bool{}
	for _, version := range []string{resourceapi.SchemeGroupVersion.String(), v1alpha1.GroupVersion.String()} {
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

// holdAnnotations are the only annotations of nodes that checks read; others can be large.
var holdAnnotations = []string{v1alpha1.AnnotationProtected, v1alpha1.AnnotationScaleIn, v1alpha1.AnnotationHeldUntil}

// cluster reads the kinds of Kubernetes.
func (s *survey) cluster(ctx context.Context, f *doctor.Facts) {
	read(ctx, s, f, doctor.KindNodes, &corev1.NodeList{}, func(node *corev1.Node) {
		node.ManagedFields, node.Status.Images = nil, nil
		maps.DeleteFunc(node.Annotations, func(key, _ string) bool { return !slices.Contains(holdAnnotations, key) })
		f.Nodes = append(f.Nodes, node)
	})
	compactor := devices.NewCompactor()
	read(ctx, s, f, doctor.KindSlices, &resourceapi.ResourceSliceList{}, func(slice *resourceapi.ResourceSlice) {
		compactor.Compact(slice)
		slice.ManagedFields = nil
		f.Slices = append(f.Slices, slice)
	})
	f.ExtendedResources = map[corev1.ResourceName]bool{}
	read(ctx, s, f, doctor.KindClasses, &resourceapi.DeviceClassList{}, func(class *resourceapi.DeviceClass) {
		if name := class.Spec.ExtendedResourceName; name != nil {
			f.ExtendedResources[corev1.ResourceName(*name)] = true
		}
	})
	read(ctx, s, f, doctor.KindPods, &corev1.PodList{}, f.AddPod)
	read(ctx, s, f, doctor.KindDaemonSets, &appsv1.DaemonSetList{}, keep(&f.DaemonSets))
	read(ctx, s, f, doctor.KindDeployments, &appsv1.DeploymentList{}, keep(&f.Deployments), client.MatchingLabels{"app.kubernetes.io/component": "controller"})
	read(ctx, s, f, doctor.KindQuotas, &corev1.ResourceQuotaList{}, keep(&f.Quotas))
	read(ctx, s, f, doctor.KindTaintRules, &resourceapi.DeviceTaintRuleList{}, keep(&f.TaintRules))
}

// mica reads the kinds of mica.gpu.
func (s *survey) mica(ctx context.Context, f *doctor.Facts) {
	read(ctx, s, f, doctor.KindGroups, &v1alpha1.GPUNodeGroupList{}, func(group *v1alpha1.GPUNodeGroup) {
		group.Status.Template = nil // up to 512 KiB
		f.Groups = append(f.Groups, group)
	})
	read(ctx, s, f, doctor.KindPolicies, &v1alpha1.GPUPolicyList{}, keep(&f.Policies))
	read(ctx, s, f, doctor.KindGPUNodes, &v1alpha1.GPUNodeList{}, keep(&f.GPUNodes))
	read(ctx, s, f, doctor.KindHeadrooms, &v1alpha1.GPUHeadroomList{}, keep(&f.Headrooms))
}

// templates reads the requests of templates that checks are about: those of DaemonSets, and those for parts of GPUs.
func (s *survey) templates(ctx context.Context, f *doctor.Facts) {
	users := map[client.ObjectKey][]string{}
	for _, set := range f.DaemonSets {
		for _, claim := range set.Spec.Template.Spec.ResourceClaims {
			if claim.ResourceClaimTemplateName != nil {
				key := client.ObjectKey{Namespace: set.Namespace, Name: *claim.ResourceClaimTemplateName}
				users[key] = append(users[key], set.Name)
			}
		}
	}
	read(ctx, s, f, doctor.KindTemplates, &resourceapi.ResourceClaimTemplateList{}, func(template *resourceapi.ResourceClaimTemplate) {
		f.AddTemplate(template)
		for _, set := range users[client.ObjectKeyFromObject(template)] {
			for _, request := range doctor.TakingDevices(template.Spec.Spec.Devices.Requests) {
				f.DaemonClaims = append(f.DaemonClaims, doctor.ClaimRequest{Namespace: template.Namespace, Name: set, Template: template.Name, Request: request})
			}
		}
	})
}

func keep[T any](list *[]T) func(T) { return func(object T) { *list = append(*list, object) } }

// read lists a kind page by page. A kind that is not served has no objects; other errors go to Unseen.
func read[T client.Object](ctx context.Context, s *survey, f *doctor.Facts, kind doctor.Kind, empty client.ObjectList, use func(T), options ...client.ListOption) {
	count := 0
	err := fleet.Each(ctx, s, empty, func(object runtime.Object) {
		if count++; count <= maxObjects {
			use(object.(T))
		}
	}, options...)
	if note(f, kind, err); count > maxObjects {
		f.Unseen[kind] = fmt.Sprintf("there are %d, and only the first %d were read", count, maxObjects)
	}
}

// note records why a kind could not be read.
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
