//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// claimsInUse returns the UIDs of the claims that hold or look at a GPU of the node and are
// reserved for a pod, sorted.
func (in *installation) claimsInUse(ctx context.Context) ([]string, error) {
	claims, err := in.client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list ResourceClaims: %w", err)
	}
	var uids []string
	for _, claim := range claims.Items {
		if in.usesNode(&claim) && len(claim.Status.ReservedFor) > 0 {
			uids = append(uids, string(claim.UID))
		}
	}
	slices.Sort(uids)
	return uids, nil
}

func (in *installation) usesNode(claim *resourcev1.ResourceClaim) bool {
	if claim.Status.Allocation == nil {
		return false
	}
	return slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(result resourcev1.DeviceRequestAllocationResult) bool {
		return result.Driver == in.driver && result.Pool == in.node
	})
}

func (in *installation) expectNoObjects(ctx context.Context) error {
	labelled := metav1.ListOptions{LabelSelector: testLabel}
	namespaces, err := in.client.CoreV1().Namespaces().List(ctx, labelled)
	if err != nil {
		return err
	}
	if len(namespaces.Items) > 0 {
		return fmt.Errorf("%d namespaces of the tests are still there, the first is %s", len(namespaces.Items), namespaces.Items[0].Name)
	}
	slices, err := in.client.ResourceV1().ResourceSlices().List(ctx, labelled)
	if err != nil {
		return err
	}
	if len(slices.Items) > 0 {
		return fmt.Errorf("%d slices of the tests are still there, the first is %s", len(slices.Items), slices.Items[0].Name)
	}
	return in.expectNoScaleOut(ctx)
}

// expectNoScaleOut wants no node group, headroom or placeholder to be left.
func (in *installation) expectNoScaleOut(ctx context.Context) error {
	for _, resource := range []schema.GroupVersionResource{gpuNodeGroups, gpuHeadrooms} {
		list, err := in.dynamicClient().Resource(resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) > 0 {
			return fmt.Errorf("%d %s are still there, the first is %s", len(list.Items), resource.Resource, list.Items[0].GetName())
		}
	}
	pods, err := in.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: placeholderLabel})
	if err != nil {
		return err
	}
	if len(pods.Items) > 0 {
		return fmt.Errorf("%d placeholders are still there, the first is %s", len(pods.Items), pods.Items[0].Name)
	}
	return nil
}

// expectPreparedClaims compares the plugin's own count of prepared claims, and the claims
// in use, with those from before the tests.
func (in *installation) expectPreparedClaims(ctx context.Context) error {
	live, err := in.claimsInUse(ctx)
	if err != nil {
		return err
	}
	if !slices.Equal(live, in.baseline) {
		return fmt.Errorf("the claims in use are %v, before the tests they were %v", live, in.baseline)
	}
	pod, err := in.readyPlugin(ctx)
	if err != nil {
		return err
	}
	prepared, err := in.metric(ctx, pod, "mica_prepared_claims")
	if err != nil {
		return err
	}
	if int(prepared) != len(live) {
		return fmt.Errorf("the plugin counts %v prepared claims (mica_prepared_claims), %d are in use", prepared, len(live))
	}
	return nil
}

// metric reads one metric without labels through the API server's proxy.
func (in *installation) metric(ctx context.Context, pod *corev1.Pod, name string) (float64, error) {
	text, err := in.metrics(ctx, pod)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("the metrics of pod %s have no %s", pod.Name, name)
}

func (in *installation) metrics(ctx context.Context, pod *corev1.Pod) (string, error) {
	port := ""
	for _, container := range pod.Spec.Containers {
		for _, candidate := range container.Ports {
			if container.Name == pluginContainer && candidate.Name == "metrics" {
				port = strconv.Itoa(int(candidate.ContainerPort))
			}
		}
	}
	if port == "" {
		return "", fmt.Errorf("pod %s has no port named metrics: set kubeletPlugin.containers.plugin.metricsPort in the chart", pod.Name)
	}
	text, err := in.client.CoreV1().RESTClient().Get().Namespace(pod.Namespace).Resource("pods").
		Name(pod.Name + ":" + port).SubResource("proxy").Suffix("metrics").DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read the metrics of pod %s: %w", pod.Name, err)
	}
	return string(text), nil
}
