package bugreport

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
)

// Connect makes a client of the API server.
type Connect func() (kubernetes.Interface, error)

// Node is the node as the API server has it: who runs there in which version, and what it says of
// GPUs. It has no address.
func Node(connect Connect, name string) Section {
	return Section{"node", func(ctx context.Context) (any, error) {
		client, err := connect()
		if err != nil {
			return nil, err
		}
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		info := node.Status.NodeInfo
		found := struct {
			Kubelet          string            `json:"kubelet"`
			ContainerRuntime string            `json:"containerRuntime"`
			OSImage          string            `json:"osImage"`
			Kernel           string            `json:"kernel"`
			BootID           string            `json:"bootID"`
			Unschedulable    bool              `json:"unschedulable"`
			Labels           map[string]string `json:"labels"`
			Taints           []string          `json:"taints"`
			Conditions       []string          `json:"conditions"`
			Allocatable      map[string]string `json:"allocatable"`
		}{
			Kubelet: info.KubeletVersion, ContainerRuntime: info.ContainerRuntimeVersion, OSImage: info.OSImage, Kernel: info.KernelVersion,
			BootID: info.BootID, Unschedulable: node.Spec.Unschedulable, Labels: map[string]string{}, Allocatable: map[string]string{},
		}
		for label, value := range node.Labels {
			if aboutGPUs(label) {
				found.Labels[label] = value
			}
		}
		for _, taint := range node.Spec.Taints {
			found.Taints = append(found.Taints, taint.ToString())
		}
		for _, condition := range node.Status.Conditions {
			if (condition.Type == corev1.NodeReady) != (condition.Status == corev1.ConditionTrue) {
				found.Conditions = append(found.Conditions, fmt.Sprintf("%s is %s: %s: %s", condition.Type, condition.Status, condition.Reason, condition.Message))
			}
		}
		for resource, quantity := range node.Status.Allocatable {
			if aboutGPUs(string(resource)) {
				found.Allocatable[string(resource)] = quantity.String()
			}
		}
		return found, nil
	}}
}

// aboutGPUs tells whether a label or resource has to do with what the plugin offers.
func aboutGPUs(name string) bool {
	for _, word := range []string{"nvidia", "mica", "pci-10de", "pci-03", "instance-type"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

type published struct {
	Name       string   `json:"name"`
	Pool       string   `json:"pool"`
	Generation int64    `json:"generation"`
	Slices     int64    `json:"slicesOfPool"`
	Devices    int      `json:"devices"`
	Types      []string `json:"types,omitempty"`
	Counters   int      `json:"counterSets"`
	Tainted    []string `json:"tainted,omitempty"`
}

// Published are the ResourceSlices that a driver has of a node at the API server.
func Published(connect Connect, driver, node string) Section {
	return Section{"published", func(ctx context.Context) (any, error) {
		client, err := connect()
		if err != nil {
			return nil, err
		}
		list, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: fields.SelectorFromSet(fields.Set{
			resourceapi.ResourceSliceSelectorDriver: driver, resourceapi.ResourceSliceSelectorNodeName: node,
		}).String()})
		if err != nil {
			return nil, err
		}
		found := make([]published, len(list.Items))
		for i, slice := range list.Items {
			found[i] = describeSlice(slice)
		}
		return found, nil
	}}
}

func describeSlice(slice resourceapi.ResourceSlice) published {
	spec := slice.Spec
	p := published{
		Name: slice.Name, Pool: spec.Pool.Name, Generation: spec.Pool.Generation, Slices: spec.Pool.ResourceSliceCount,
		Devices: len(spec.Devices), Counters: len(spec.SharedCounters),
	}
	times, order := map[string]int{}, []string{}
	for _, device := range spec.Devices {
		kind := "of no type"
		if attribute := device.Attributes["type"]; attribute.StringValue != nil {
			kind = *attribute.StringValue
		}
		if times[kind]++; times[kind] == 1 {
			order = append(order, kind)
		}
		for _, taint := range device.Taints {
			p.Tainted = append(p.Tainted, fmt.Sprintf("%s: %s=%s:%s", device.Name, taint.Key, taint.Value, taint.Effect))
		}
	}
	for _, kind := range order {
		p.Types = append(p.Types, fmt.Sprintf("%d %s", times[kind], kind))
	}
	return p
}
