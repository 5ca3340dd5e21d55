package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/kubectl/migrate"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
)

// liveKind is a kind of objects that migrate reads from a cluster.
type liveKind struct {
	gvk  schema.GroupVersionKind
	list func() client.ObjectList
}

func liveKinds() []liveKind {
	return []liveKind{
		{appsv1.SchemeGroupVersion.WithKind("Deployment"), func() client.ObjectList { return &appsv1.DeploymentList{} }},
		{appsv1.SchemeGroupVersion.WithKind("StatefulSet"), func() client.ObjectList { return &appsv1.StatefulSetList{} }},
		{appsv1.SchemeGroupVersion.WithKind("DaemonSet"), func() client.ObjectList { return &appsv1.DaemonSetList{} }},
		{appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), func() client.ObjectList { return &appsv1.ReplicaSetList{} }},
		{batchv1.SchemeGroupVersion.WithKind("CronJob"), func() client.ObjectList { return &batchv1.CronJobList{} }},
		{batchv1.SchemeGroupVersion.WithKind("Job"), func() client.ObjectList { return &batchv1.JobList{} }},
		{corev1.SchemeGroupVersion.WithKind("Pod"), func() client.ObjectList { return &corev1.PodList{} }},
		{corev1.SchemeGroupVersion.WithKind("ResourceQuota"), func() client.ObjectList { return &corev1.ResourceQuotaList{} }},
		{resourceapi.SchemeGroupVersion.WithKind("ResourceClaimTemplate"), func() client.ObjectList { return &resourceapi.ResourceClaimTemplateList{} }},
		{resourceapi.SchemeGroupVersion.WithKind("ResourceClaim"), func() client.ObjectList { return &resourceapi.ResourceClaimList{} }},
		{schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"}, func() client.ObjectList {
			list := &unstructured.UnstructuredList{}
			list.SetAPIVersion("keda.sh/v1alpha1")
			list.SetKind("ScaledObjectList")
			return list
		}},
	}
}

// live reads the objects of a namespace, or of all. What may not be read is told of.
func (m *migrating) live(command *cobra.Command, config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (client.Reader, error)) ([]migrate.Source, error) {
	options, err := m.chosen()
	if err != nil {
		return nil, err
	}
	namespace, _, err := namespaceOf(config)
	if err != nil {
		return nil, err
	}
	if !m.all {
		options = append(options, client.InNamespace(namespace))
	}
	reader, err := connect(config)
	if err != nil {
		return nil, err
	}
	var sources []migrate.Source
	hidden := 0
	kinds := liveKinds()
	for _, kind := range kinds {
		of, err := liveSources(command.Context(), reader, kind, options)
		switch {
		case apierrors.IsForbidden(err):
			hidden++
			command.PrintErrf("note: you may not list the %ss, so they are not migrated\n", kind.gvk.Kind)
		case meta.IsNoMatchError(err), apierrors.IsNotFound(err): // the cluster does not have the kind
		case err != nil:
			return nil, fmt.Errorf("list the %ss: %w", kind.gvk.Kind, err)
		}
		sources = append(sources, of...)
	}
	switch {
	case hidden == len(kinds):
		return nil, fmt.Errorf("you may list no workloads in namespace %s: give another with -n, or manifests with -f", namespace)
	case len(sources) == 0:
		return nil, fmt.Errorf("there are no workloads in namespace %s: give another with -n, or all with -A", namespace)
	}
	return sources, nil
}

func (m *migrating) chosen() ([]client.ListOption, error) {
	selector, err := labels.Parse(m.selector)
	if err != nil {
		return nil, fmt.Errorf("-l %q selects nothing: %w", m.selector, err)
	}
	return []client.ListOption{client.MatchingLabelsSelector{Selector: selector}}, nil
}

// liveSources are manifests of the objects of a kind that no controller has made.
func liveSources(ctx context.Context, reader client.Reader, kind liveKind, options []client.ListOption) ([]migrate.Source, error) {
	var (
		sources []migrate.Source
		failed  error
	)
	err := eachOf(ctx, reader, kind.list, func(object runtime.Object) {
		o, is := object.(client.Object)
		if !is || metav1.GetControllerOf(o) != nil || failed != nil {
			return
		}
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			failed = err
			return
		}
		migrate.Clean(fields)
		fields["apiVersion"], fields["kind"] = kind.gvk.GroupVersion().String(), kind.gvk.Kind
		text, err := yaml.Marshal(fields)
		if err != nil {
			failed = err
			return
		}
		sources = append(sources, migrate.Source{Name: "the cluster's " + kind.gvk.Kind + "/" + o.GetName(), Text: text})
	}, options...)
	if err != nil {
		return nil, err
	}
	return sources, failed
}

// runCheck prints the plan.
func (m *migrating) runCheck(command *cobra.Command, config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (client.Reader, error)) error {
	options, err := m.chosen()
	if err != nil {
		return err
	}
	reader, err := connect(config)
	if err != nil {
		return err
	}
	cluster, err := m.survey(command.Context(), reader, options)
	if err != nil {
		return err
	}
	plan := migrate.NewPlan(cluster)
	out := command.OutOrStdout()
	if m.output == outputJSON {
		err = terminal.JSON.Encode(out, plan)
	} else {
		err = plan.Write(out, terminal.Of(out, os.LookupEnv))
	}
	if err != nil {
		return err
	}
	if moving := plan.Moving(); moving > 0 {
		return no(fmt.Sprintf("%d of %d nodes with GPUs have still to move", moving, len(plan.Nodes)))
	}
	return nil
}

// survey reads what a plan depends on, page by page. Of a pod and a slice only its name or number stays.
func (m *migrating) survey(ctx context.Context, reader client.Reader, nodes []client.ListOption) (migrate.Cluster, error) {
	var cluster migrate.Cluster
	pods, slices := map[string][]string{}, map[string]int{}
	for _, of := range []struct {
		what    string
		list    func() client.ObjectList
		options []client.ListOption
		each    func(runtime.Object)
	}{
		{"pods", func() client.ObjectList { return &corev1.PodList{} }, nil, func(object runtime.Object) {
			pod := object.(*corev1.Pod)
			if pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed && migrate.Uses(pod.Spec) {
				pods[pod.Spec.NodeName] = append(pods[pod.Spec.NodeName], pod.Namespace+"/"+pod.Name)
			}
		}},
		{"resourceslices", func() client.ObjectList { return &resourceapi.ResourceSliceList{} }, []client.ListOption{client.MatchingFields{resourceapi.ResourceSliceSelectorDriver: m.driver}}, func(object runtime.Object) {
			if node := object.(*resourceapi.ResourceSlice).Spec.NodeName; node != nil {
				slices[*node]++
			}
		}},
		{"daemonsets", func() client.ObjectList { return &appsv1.DaemonSetList{} }, nil, func(object runtime.Object) {
			set := object.(*appsv1.DaemonSet)
			if migrate.IsPlugin(set.Spec.Template.Spec) {
				cluster.Plugins = append(cluster.Plugins, migrate.Plugin{Namespace: set.Namespace, Name: set.Name, NodeSelector: set.Spec.Template.Spec.NodeSelector})
			}
		}},
		{"deviceclasses", func() client.ObjectList { return &resourceapi.DeviceClassList{} }, nil, func(object runtime.Object) {
			cluster.Installed = cluster.Installed || object.(*resourceapi.DeviceClass).Name == m.driver
		}},
		{"nodes", func() client.ObjectList { return &corev1.NodeList{} }, nodes, func(object runtime.Object) {
			node := object.(*corev1.Node)
			cluster.Nodes = append(cluster.Nodes, migrate.Machine{
				Name: node.Name, Labels: node.Labels, Cordoned: node.Spec.Unschedulable, Resources: migrate.Resources(node.Status),
				Slices: slices[node.Name], Pods: pods[node.Name],
			})
		}},
	} {
		if err := eachOf(ctx, reader, of.list, of.each, of.options...); err != nil {
			if apierrors.IsForbidden(err) {
				return cluster, fmt.Errorf("you may not list the %s of all namespaces, and the plan depends on pods, nodes, daemonsets, deviceclasses and resourceslices: let somebody run it who may", of.what)
			}
			return cluster, fmt.Errorf("list the %s: %w", of.what, err)
		}
	}
	return cluster, nil
}
