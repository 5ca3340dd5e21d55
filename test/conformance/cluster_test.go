//go:build conformance

package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

const (
	pluginSelector = "app.kubernetes.io/component=kubelet-plugin,app.kubernetes.io/name=mica"
	// gpuTaint is on GPU nodes by convention.
	gpuTaint = "nvidia.com/gpu"
)

// cluster is one with Mica and GPUs.
type cluster struct {
	client  kubernetes.Interface
	host    string
	version string
	plugin  appsv1.DaemonSet
	// driver is the name of Mica's driver and of its DeviceClass of entire GPUs.
	driver string
	// gpus are the entire GPUs that are published at the start, by node, on the nodes to test.
	gpus map[string][]gpu
}

type gpu struct {
	name, uuid string
	// driver and cuda are the versions that the ResourceSlice has.
	driver, cuda string
}

func (c *cluster) String() string {
	count, _ := c.most()
	return fmt.Sprintf("%s, Kubernetes %s, Mica %s, driver %s with %d GPUs on %d nodes",
		c.host, c.version, c.plugin.Spec.Template.Spec.Containers[0].Image, c.driver, count, len(c.gpus))
}

// connect finds what is to be tested, or says in a sentence what is missing.
func connect(ctx context.Context) (*cluster, error) {
	path := os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
	if path == "" {
		return nil, errors.New("KUBECONFIG is not set: name the cluster to test by it")
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("KUBECONFIG %s names no cluster: is there such a file?", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read KUBECONFIG %s: %w", path, err)
	}
	config.QPS, config.Burst = 50, 100
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("use KUBECONFIG %s: %w", path, err)
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("the cluster at %s does not answer: %w", config.Host, err)
	}
	c := &cluster{client: client, host: config.Host, version: version.GitVersion}
	if err := c.findPlugin(ctx); err != nil {
		return nil, err
	}
	c.gpus, err = c.publishedGPUs(ctx, *nodesFlag)
	switch {
	case err != nil:
		return nil, err
	case len(c.gpus) == 0 && *nodesFlag != "":
		return nil, fmt.Errorf("no node with the labels %s has a GPU that Mica offers: choose other nodes with -nodes, or see `kubectl gpu list`", *nodesFlag)
	case len(c.gpus) == 0:
		return nil, fmt.Errorf("no node of the cluster has an entire GPU that Mica offers: add a GPU node, or see `kubectl gpu doctor` for the reason")
	}
	return c, nil
}

func (c *cluster) findPlugin(ctx context.Context) error {
	list, err := c.client.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: pluginSelector})
	switch {
	case err != nil:
		return fmt.Errorf("look for Mica's DaemonSet: %w", err)
	case len(list.Items) == 0:
		return fmt.Errorf("Mica is not installed, for no DaemonSet has the labels %s: install its chart first", pluginSelector)
	case len(list.Items) > 1:
		return fmt.Errorf("%d DaemonSets have the labels %s: uninstall all releases of Mica but one", len(list.Items), pluginSelector)
	}
	c.plugin = list.Items[0]
	for _, container := range c.plugin.Spec.Template.Spec.Containers {
		for _, variable := range container.Env {
			if variable.Name == "DRIVER_NAME" {
				c.driver = variable.Value
			}
		}
	}
	if c.driver == "" {
		return fmt.Errorf("DaemonSet %s/%s has no DRIVER_NAME, which the chart sets: install this version's chart", c.plugin.Namespace, c.plugin.Name)
	}
	return nil
}

// publishedGPUs are the entire GPUs on nodes with the labels, by node.
func (c *cluster) publishedGPUs(ctx context.Context, selector string) (map[string][]gpu, error) {
	nodes, err := c.nodes(ctx, selector)
	if err != nil {
		return nil, err
	}
	list, err := c.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourcev1.ResourceSliceSelectorDriver + "=" + c.driver,
	})
	if apierrors.IsNotFound(err) {
		return nil, errors.New("the cluster does not serve resource.k8s.io/v1: Mica needs Kubernetes 1.34 or newer with dynamic resource allocation")
	}
	if err != nil {
		return nil, fmt.Errorf("list ResourceSlices: %w", err)
	}
	found := map[string][]gpu{}
	for _, slice := range list.Items {
		node := ptr.Deref(slice.Spec.NodeName, "")
		if !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == node }) {
			continue
		}
		for _, device := range slice.Spec.Devices {
			text := func(name resourcev1.QualifiedName) string { return ptr.Deref(device.Attributes[name].StringValue, "") }
			version := func(name resourcev1.QualifiedName) string { return ptr.Deref(device.Attributes[name].VersionValue, "") }
			if text("type") == "gpu" {
				found[node] = append(found[node], gpu{device.Name, text("uuid"), version("driverVersion"), version("cudaDriverVersion")})
			}
		}
	}
	return found, nil
}

func (c *cluster) nodes(ctx context.Context, selector string) ([]corev1.Node, error) {
	if _, err := labels.Parse(selector); err != nil {
		return nil, fmt.Errorf("%q is no label selector: %w", selector, err)
	}
	list, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return list.Items, nil
}

// onNodes lets a pod on the nodes to test only.
func (c *cluster) onNodes() *corev1.Affinity {
	names := make([]string, 0, len(c.gpus))
	for name := range c.gpus {
		names = append(names, name)
	}
	slices.Sort(names)
	return onNodesNamed(names...)
}

// onNodesNamed has a term per node: a field has one value.
func onNodesNamed(names ...string) *corev1.Affinity {
	terms := make([]corev1.NodeSelectorTerm, len(names))
	for i, name := range names {
		terms[i].MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
	}}
}

// gpuOf is the GPU that a claim was given, which may have been published since the start.
func (c *cluster) gpuOf(ctx context.Context, result resourcev1.DeviceRequestAllocationResult) (gpu, error) {
	now, err := c.publishedGPUs(ctx, *nodesFlag)
	if err != nil {
		return gpu{}, err
	}
	i := slices.IndexFunc(now[result.Pool], func(g gpu) bool { return result.Driver == c.driver && g.name == result.Device })
	if i < 0 {
		return gpu{}, fmt.Errorf("%s/%s/%s is no GPU of the nodes to test", result.Driver, result.Pool, result.Device)
	}
	return now[result.Pool][i], nil
}

// most is how many GPUs there are, and how many the node has that has most.
func (c *cluster) most() (all, onOne int) {
	for _, gpus := range c.gpus {
		all, onOne = all+len(gpus), max(onOne, len(gpus))
	}
	return all, onOne
}

// summary is a pod's state in one line.
func summary(pod *corev1.Pod) string {
	parts := []string{string(pod.Status.Phase)}
	for _, condition := range pod.Status.Conditions {
		if condition.Status != corev1.ConditionTrue && condition.Message != "" {
			parts = append(parts, condition.Reason+": "+condition.Message)
		}
	}
	for _, status := range pod.Status.ContainerStatuses {
		if waiting := status.State.Waiting; waiting != nil && waiting.Message != "" {
			parts = append(parts, fmt.Sprintf("container %s: %s: %s", status.Name, waiting.Reason, waiting.Message))
		}
	}
	return strings.Join(parts, "; ")
}
