package diagnosis

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// Connect returns a client of the API server.
type Connect func() (kubernetes.Interface, error)

// Node shows the Node object without addresses: versions, conditions, and labels and resources of
// GPUs.
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
		info.MachineID, info.SystemUUID = "", "" // they identify the machine
		found := struct {
			Info          corev1.NodeSystemInfo `json:"info"`
			Unschedulable bool                  `json:"unschedulable"`
			Labels        map[string]string     `json:"labels"`
			Taints        []string              `json:"taints"`
			Conditions    []string              `json:"conditions"`
			Allocatable   map[string]string     `json:"allocatable"`
		}{Info: info, Unschedulable: node.Spec.Unschedulable, Labels: map[string]string{}, Allocatable: map[string]string{}}
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

// aboutGPUs reports whether a label or resource is about GPUs.
func aboutGPUs(name string) bool {
	for _, word := range []string{"nvidia", "mica", "pci-10de", "pci-03", "instance-type"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

type published struct {
	Slice   string   `json:"slice"`
	Types   []string `json:"types,omitempty"`
	Tainted []string `json:"tainted,omitempty"`
}

// Published shows the ResourceSlices of a driver and node at the API server.
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
	p := published{Slice: fmt.Sprintf("%s: pool %s, generation %d, %d slices; devices: %d, counter sets: %d",
		slice.Name, spec.Pool.Name, spec.Pool.Generation, spec.Pool.ResourceSliceCount, len(spec.Devices), len(spec.SharedCounters))}
	var types counted
	for _, device := range spec.Devices {
		types.add(ptr.Deref(device.Attributes["type"].StringValue, "without a type"))
		for _, taint := range device.Taints {
			p.Tainted = append(p.Tainted, fmt.Sprintf("%s: %s=%s:%s", device.Name, taint.Key, taint.Value, taint.Effect))
		}
	}
	p.Types = types.list()
	return p
}
