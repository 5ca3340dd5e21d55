package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/test/autoscaler/scan"
	"github.com/mica-gpu/mica/test/fleet/cloud"
)

const (
	component       = "cluster-autoscaler"
	statusNamespace = metav1.NamespaceSystem
	statusName      = "cluster-autoscaler-status"
	// exitTimeout bounds the deletion of the status at exit.
	exitTimeout       = 5 * time.Second
	annotationUpdated = "cluster-autoscaler.kubernetes.io/last-updated"
	// resourceGPU is the resource that the AWS provider assumes for all types with GPUs.
	resourceGPU = corev1.ResourceName("nvidia.com/gpu")
)

// autoscaler scans the cluster. Its memory is lost with the process.
type autoscaler struct {
	client      kubernetes.Interface
	cloud       *cloud.Client
	options     scan.Options
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	memory      scan.Memory
	// names are the node groups by scaling group. instances are the cloud's instances by node.
	names, instances map[string]string
}

func newAutoscaler(client kubernetes.Interface, machines *cloud.Client, options scan.Options) *autoscaler {
	broadcaster := record.NewBroadcasterWithCorrelatorOptions(oneInFiveMinutes())
	return &autoscaler{
		client: client, cloud: machines, options: options, memory: scan.NewMemory(),
		broadcaster: broadcaster,
		recorder:    broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component}),
	}
}

// oneInFiveMinutes limits Events to one per object and reason in five minutes (kubernetes-sigs/cluster-autoscaler,
// pkg/utils/kubernetes/factory.go, getCorrelationOptions).
func oneInFiveMinutes() record.CorrelatorOptions {
	return record.CorrelatorOptions{
		QPS: 1. / 300, BurstSize: 1, LRUCacheSize: 8192,
		SpamKeyFunc: func(event *corev1.Event) string {
			object := event.InvolvedObject
			return strings.Join([]string{event.Reason, event.Source.Component, object.Kind, object.Namespace, object.Name, string(object.UID)}, "/")
		},
	}
}

func (a *autoscaler) run(ctx context.Context, interval time.Duration) error {
	a.broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: a.client.CoreV1().Events("")})
	defer a.broadcaster.Shutdown()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := a.once(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "A scan failed; retrying")
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), a.deleteStatus(context.WithoutCancel(ctx)))
		case <-tick.C:
		}
	}
}

// deleteStatus deletes the status at exit (kubernetes/autoscaler, cluster-autoscaler/core/static_autoscaler.go,
// ExitCleanUp). Until another process has scanned, its readers know no target.
func (a *autoscaler) deleteStatus(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, exitTimeout)
	defer cancel()
	err := a.client.CoreV1().ConfigMaps(statusNamespace).Delete(ctx, statusName, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the status: %w", err)
	}
	return nil
}

func (a *autoscaler) once(ctx context.Context) error {
	state, err := a.look(ctx)
	if err != nil {
		return err
	}
	result, err := scan.Scan(ctx, a.options, state, a.memory)
	if err != nil {
		return err
	}
	a.memory = result.Memory
	return errors.Join(a.act(ctx, result), a.writeStatus(ctx, result.Status, state.Now))
}

// act sets sizes before it writes Events (pkg/core/scaleup/orchestrator/orchestrator.go, ScaleUp).
func (a *autoscaler) act(ctx context.Context, result scan.Result) error {
	log := klog.FromContext(ctx)
	var problems []error
	for group, size := range result.Sizes {
		log.Info("Setting a size", "group", group, "size", size)
		problems = append(problems, a.cloud.SetDesired(ctx, a.names[group], size))
	}
	for _, node := range result.Remove {
		log.Info("Removing an unneeded node", "node", node)
		problems = append(problems, a.cloud.Terminate(ctx, a.instances[node]))
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	for _, event := range result.Events {
		log.Info("Writing an Event", "pod", klog.KObj(event.Pod), "reason", event.Reason, "message", event.Message)
		a.recorder.Event(event.Pod, corev1.EventTypeNormal, event.Reason, event.Message)
	}
	return nil
}

// look reads the cloud before the nodes. A node that joins in between counts twice for a scan, and is not asked for again.
func (a *autoscaler) look(ctx context.Context) (scan.State, error) {
	state := scan.State{Now: time.Now()}
	groups, err := a.cloud.Groups(ctx)
	if err != nil {
		return state, err
	}
	a.names = map[string]string{}
	for _, group := range groups {
		a.names[group.Scaling()] = group.Name
		state.Groups = append(state.Groups, view(group))
	}
	pods, err := a.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return state, fmt.Errorf("list pods: %w", err)
	}
	state.Pods = pointers(pods.Items)
	claims, err := a.client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return state, fmt.Errorf("list claims: %w", err)
	}
	state.Claims = pointers(claims.Items)
	classes, err := a.client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return state, fmt.Errorf("list device classes: %w", err)
	}
	state.Classes = pointers(classes.Items)
	nodes, err := a.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return state, fmt.Errorf("list nodes: %w", err)
	}
	state.Nodes = pointers(nodes.Items)
	a.instances = map[string]string{}
	for _, node := range state.Nodes {
		a.instances[node.Name] = cloud.InstanceOf(node)
	}
	published, err := a.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return state, fmt.Errorf("list slices: %w", err)
	}
	state.Slices = pointers(published.Items)
	return state, nil
}

// view is the AWS provider's view of a node group (kubernetes/autoscaler, cloudprovider/aws/aws_manager.go,
// buildNodeFromTemplate).
func view(state cloud.State) scan.Group {
	group := scan.Group{
		Name: state.Scaling(), Selector: map[string]string{cloud.LabelNodegroup: state.Name},
		Min: state.Min, Max: state.Max, Target: state.Desired,
		Labels: templateLabels(state.Group), Taints: state.Taints, Allocatable: corev1.ResourceList{}, Failed: state.Failed,
		ScaleDownUnneeded: state.ScaleDownUnneeded.Duration,
	}
	maps.Copy(group.Allocatable, state.Allocatable)
	if state.GPUs > 0 {
		group.Allocatable[resourceGPU] = *resource.NewQuantity(state.GPUs, resource.DecimalSI)
	}
	if state.Failure != nil {
		group.Code, group.Message = state.Failure.Code, state.Failure.Message
	}
	return group
}

// templateLabels are the labels that the AWS provider predicts for a group without nodes (buildGenericLabels in
// aws_manager.go, getManagedNodegroupInfo in aws_wrapper.go). A node has more.
func templateLabels(group cloud.Group) map[string]string {
	labels := map[string]string{
		corev1.LabelOSStable:            "linux",
		corev1.LabelArchStable:          "amd64",
		corev1.LabelInstanceTypeStable:  group.InstanceType,
		corev1.LabelTopologyRegion:      cloud.Region,
		corev1.LabelTopologyZone:        cloud.Zone,
		"topology.ebs.csi.aws.com/zone": cloud.Zone,
		cloud.LabelNodegroup:            group.Name,
		cloud.LabelCapacityType:         group.Capacity(),
	}
	maps.Copy(labels, group.Labels)
	return labels
}

func pointers[T any](items []T) []*T {
	list := make([]*T, len(items))
	for i := range items {
		list[i] = &items[i]
	}
	return list
}

func (a *autoscaler) writeStatus(ctx context.Context, status scan.Status, now time.Time) error {
	text, err := status.YAML()
	if err != nil {
		return err
	}
	maps := a.client.CoreV1().ConfigMaps(statusNamespace)
	written := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: statusNamespace, Name: statusName,
			Annotations: map[string]string{annotationUpdated: now.UTC().Format(scan.TimeFormat)},
		},
		Data: map[string]string{"status": text},
	}
	_, err = maps.Update(ctx, written, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, written, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	return nil
}
