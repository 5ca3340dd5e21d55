package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/scaletarget"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// scaledTarget parses KIND/NAME or KIND NAME. It asks the cluster for kinds of other groups.
func scaledTarget(args []string, cluster func() (client.WithWatch, error)) (workload.Ref, error) {
	if len(args) == 0 {
		return workload.Ref{}, errors.New("the workload is missing: name one, such as deployment/NAME")
	}
	text := strings.Join(args, "/")
	ref, err := workload.ParseRef("", text)
	if errors.Is(err, workload.ErrUnknownKind) {
		ref, err = foreignTarget(text, err, cluster)
	}
	if err != nil {
		return workload.Ref{}, err
	}
	if !ref.Scalable() {
		return workload.Ref{}, fmt.Errorf("%s has no replicas to scale: name a Deployment, a StatefulSet, a ReplicaSet or another kind with a scale subresource", ref)
	}
	return ref, nil
}

// foreignTarget returns the error unknown for other kinds of the core group, which have no scale.
func foreignTarget(text string, unknown error, cluster func() (client.WithWatch, error)) (workload.Ref, error) {
	connected, err := cluster()
	if err != nil {
		return workload.Ref{}, err
	}
	word, name, _ := strings.Cut(text, "/")
	mapping, err := scaletarget.Kind(connected.RESTMapper(), word, "")
	if err != nil {
		return workload.Ref{}, fmt.Errorf("%s names no workload to scale, such as a Deployment: %w", text, err)
	}
	kind := mapping.GroupVersionKind
	if kind.Group == "" {
		return workload.Ref{}, unknown
	}
	return workload.ParseRef("", kind.Kind+"."+kind.Group+"/"+name)
}

// scaledPods describes a workload's pods.
type scaledPods struct {
	// pods are those of one replica; none if the workload has no pod template.
	pods []corev1.PodSpec
	// selector selects them, one pod per gang.
	selector string
	// apiVersion and kind are set for kinds of other groups.
	apiVersion, kind string
}

// readTarget warns if a workload has no pod template.
func readTarget(command *cobra.Command, cluster client.WithWatch, target workload.Ref) (scaledPods, error) {
	if !target.Foreign() {
		return readBuiltIn(command.Context(), cluster, target)
	}
	reader := scaletarget.NewReader(cluster, clock.RealClock{}, func(schema.GroupResource) string { return "ask for the right to get it" })
	read, err := reader.Read(command.Context(), scaletarget.Name{Kind: target.Kind, Group: target.Group, Namespace: target.Namespace, Name: target.Name})
	if err != nil {
		return scaledPods{}, err
	}
	s := scaledPods{pods: make([]corev1.PodSpec, len(read.Members))}
	s.apiVersion, s.kind = read.Kind.ToAPIVersionAndKind()
	if read.Selector != nil {
		s.selector = read.Selector.String()
	}
	if len(read.Members) == 0 {
		command.PrintErrf("note: %s has no pod template, so Mica reads its existing pods: keep at least one replica.\n", target)
	}
	for i := range read.Members {
		s.pods[i] = read.Members[i].Template.Spec
	}
	return s, nil
}

// readBuiltIn reads a workload of a kind of Kubernetes.
func readBuiltIn(ctx context.Context, reader client.Reader, target workload.Ref) (scaledPods, error) {
	var (
		object   client.Object
		pod      *corev1.PodSpec
		selector **metav1.LabelSelector
	)
	switch target.Kind {
	case workload.KindDeployment:
		o := &appsv1.Deployment{}
		object, pod, selector = o, &o.Spec.Template.Spec, &o.Spec.Selector
	case workload.KindStatefulSet:
		o := &appsv1.StatefulSet{}
		object, pod, selector = o, &o.Spec.Template.Spec, &o.Spec.Selector
	default:
		o := &appsv1.ReplicaSet{}
		object, pod, selector = o, &o.Spec.Template.Spec, &o.Spec.Selector
	}
	err := reader.Get(ctx, client.ObjectKey{Namespace: target.Namespace, Name: target.Name}, object)
	switch {
	case apierrors.IsNotFound(err):
		return scaledPods{}, fmt.Errorf("there is no %s in namespace %s: create it first, or give another namespace with -n", target, target.Namespace)
	case err != nil:
		return scaledPods{}, fmt.Errorf("read %s in namespace %s: %w", target, target.Namespace, err)
	}
	s := scaledPods{pods: []corev1.PodSpec{*pod}}
	if selected, err := metav1.LabelSelectorAsSelector(*selector); err == nil && !selected.Empty() {
		s.selector = selected.String()
	}
	return s, nil
}

// partitions is the DeviceClass of MIG partitions.
const partitions = "mig.nvidia.com"

// notePartitions warns if a profile needs utilization and the devices may not report it.
func (s *scaling) notePartitions(command *cobra.Command, reader client.Reader, target workload.Ref, pods []corev1.PodSpec) error {
	p, err := s.Profiles.Get(s.Profile)
	if err != nil || !slices.Contains(p.Triggers, profile.GPUUtilization) {
		return err
	}
	for _, pod := range pods {
		asks, err := asksForPartitions(command.Context(), reader, target.Namespace, pod)
		if err != nil {
			return err
		}
		if !asks {
			continue
		}
		if s.Demand != "" || p.Holds(profile.GPUUtilization) {
			command.PrintErrf("note: partitions of A100 and A30 do not report their utilization: on them, the load alone decides which replicas of %s stay.\n", target)
		} else {
			command.PrintErrf("note: partitions of A100 and A30 do not report their utilization: on them, profile %s cannot scale %s. Choose a profile with a signal of load.\n", s.Profile, target)
		}
		return nil
	}
	return nil
}

// asksForPartitions reports whether a pod's claims may get MIG partitions. A missing template does not.
func asksForPartitions(ctx context.Context, reader client.Reader, namespace string, pod corev1.PodSpec) (bool, error) {
	for _, reference := range pod.ResourceClaims {
		if reference.ResourceClaimTemplateName == nil {
			continue
		}
		var template resourceapi.ResourceClaimTemplate
		err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: *reference.ResourceClaimTemplateName}, &template)
		if err != nil && !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("read ResourceClaimTemplate %s in namespace %s: %w", *reference.ResourceClaimTemplateName, namespace, err)
		}
		for _, request := range template.Spec.Spec.Devices.Requests {
			if request.Exactly != nil && request.Exactly.DeviceClassName == partitions ||
				slices.ContainsFunc(request.FirstAvailable, func(r resourceapi.DeviceSubRequest) bool { return r.DeviceClassName == partitions }) {
				return true, nil
			}
		}
	}
	return false, nil
}

// asksForDevices reports whether a pod has a claim, its own or one for an extended resource.
func asksForDevices(ctx context.Context, reader client.Reader, pod corev1.PodSpec) (bool, error) {
	if len(pod.ResourceClaims) > 0 {
		return true, nil
	}
	var classes resourceapi.DeviceClassList
	if err := reader.List(ctx, &classes); err != nil {
		return false, fmt.Errorf("list the DeviceClasses to find extended resources of the pods: %w", err)
	}
	extended := map[corev1.ResourceName]bool{}
	for _, class := range classes.Items {
		if class.Spec.ExtendedResourceName != nil {
			extended[corev1.ResourceName(*class.Spec.ExtendedResourceName)] = true
		}
	}
	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		// Extended resources need a limit equal to the request.
		for name := range container.Resources.Limits {
			if extended[name] || strings.HasPrefix(string(name), resourceapi.ResourceDeviceClassPrefix) {
				return true, nil
			}
		}
	}
	return false, nil
}
