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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/elastic/scaledobject"
	"github.com/mica-gpu/mica/pkg/elastic/scaletarget"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// scaledTarget takes KIND/NAME, as kubectl does, or KIND NAME. Which kind of another group is meant by
// a word alone, it asks the cluster.
func scaledTarget(args []string, cluster func() (client.WithWatch, error)) (workload.Ref, error) {
	if len(args) == 0 {
		return workload.Ref{}, errors.New("scaledobject wants one workload, as deployment/NAME, and was given none")
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

// foreignTarget is unknown where the cluster has the kind among its own, none of which is scaled.
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

// podsOf reads what the pods of a replica are made of; none where the workload does not say, of which
// there is a note. It writes down how the cluster calls the kind.
func podsOf(command *cobra.Command, cluster client.WithWatch, target workload.Ref, called *scaledobject.ScaleTargetRef) ([]corev1.PodSpec, error) {
	if !target.Foreign() {
		pod, err := podOf(command.Context(), cluster, target)
		return []corev1.PodSpec{pod}, err
	}
	reader := scaletarget.NewReader(cluster, clock.RealClock{}, func(schema.GroupResource) string { return "ask for the right to get it" })
	read, err := reader.Read(command.Context(), scaletarget.Name{Kind: target.Kind, Group: target.Group, Namespace: target.Namespace, Name: target.Name})
	if err != nil {
		return nil, err
	}
	called.APIVersion, called.Kind = read.Kind.ToAPIVersionAndKind()
	if len(read.Members) == 0 {
		command.PrintErrf("note: %s does not say what its pods ask for, so Mica learns it from the pods that there are: keep one replica at least.\n", target)
	}
	pods := make([]corev1.PodSpec, len(read.Members))
	for i := range read.Members {
		pods[i] = read.Members[i].Template.Spec
	}
	return pods, nil
}

// podOf reads what the pods of a workload are made of.
func podOf(ctx context.Context, reader client.Reader, target workload.Ref) (corev1.PodSpec, error) {
	var (
		object client.Object
		pod    *corev1.PodSpec
	)
	switch target.Kind {
	case workload.KindDeployment:
		o := &appsv1.Deployment{}
		object, pod = o, &o.Spec.Template.Spec
	case workload.KindStatefulSet:
		o := &appsv1.StatefulSet{}
		object, pod = o, &o.Spec.Template.Spec
	default:
		o := &appsv1.ReplicaSet{}
		object, pod = o, &o.Spec.Template.Spec
	}
	err := reader.Get(ctx, client.ObjectKey{Namespace: target.Namespace, Name: target.Name}, object)
	switch {
	case apierrors.IsNotFound(err):
		return corev1.PodSpec{}, fmt.Errorf("there is no %s in namespace %s: create it first, or give another namespace with -n", target, target.Namespace)
	case err != nil:
		return corev1.PodSpec{}, fmt.Errorf("read %s in namespace %s: %w", target, target.Namespace, err)
	}
	return *pod, nil
}

// asksForDevices tells whether a pod gets devices by a claim, its own or one that is made for an
// extended resource.
func asksForDevices(ctx context.Context, reader client.Reader, pod corev1.PodSpec) (bool, error) {
	if len(pod.ResourceClaims) > 0 {
		return true, nil
	}
	var classes resourceapi.DeviceClassList
	if err := reader.List(ctx, &classes); err != nil {
		return false, fmt.Errorf("list the device classes, to see whether one stands for a resource of the pods: %w", err)
	}
	extended := map[corev1.ResourceName]bool{}
	for _, class := range classes.Items {
		if class.Spec.ExtendedResourceName != nil {
			extended[corev1.ResourceName(*class.Spec.ExtendedResourceName)] = true
		}
	}
	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		// An extended resource has to have a limit, and no other request.
		for name := range container.Resources.Limits {
			if extended[name] || strings.HasPrefix(string(name), resourceapi.ResourceDeviceClassPrefix) {
				return true, nil
			}
		}
	}
	return false, nil
}
