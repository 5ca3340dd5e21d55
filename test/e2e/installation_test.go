//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

const (
	pluginSelector  = "app.kubernetes.io/component=kubelet-plugin,app.kubernetes.io/name=mica"
	pluginContainer = "plugin"
	defaultImage    = "mica.local/workload:dev"
)

// installation is a cluster with Mica installed, and the node that is tested.
type installation struct {
	config *rest.Config
	client kubernetes.Interface
	// plugin is the DaemonSet, namespace/name.
	plugin objectName
	// driver and the directories are those of the DaemonSet's environment.
	driver, cdiRoot, pluginsDirectory string
	// mpsRoot is where the MPS daemons' files are, empty where there are none.
	mpsRoot        string
	serviceAccount string
	image          string
	// node is the node's name, hostname the label by which pods choose it.
	node, hostname string
	// devices are the whole GPUs of the node at the start, in the order of the slices,
	// partitions its MIG partitions, and shares the GPUs that are offered in shares. Not
	// every GPU has partitions, nor is each offered whole.
	devices, partitions, shares []device
	gpus                        *reservations
	// baseline are the claims that were in use before the tests.
	baseline []string
	// uninstalled: TestUninstall has taken Mica away.
	uninstalled bool
}

type objectName struct{ namespace, name string }

func (n objectName) String() string { return n.namespace + "/" + n.name }

// device is a published GPU or MIG partition. A partition that is made when a claim gets it
// has no uuid until then.
type device struct {
	name, kind, uuid string
	// minor is that of the GPU, also of a partition's.
	minor int64
	resourcev1.Device
	// capabilities are the device nodes that guard a partition in use, without directory.
	capabilities []string
}

// The values of the attribute type.
const (
	kindGPU       = "gpu"
	kindPartition = "mig"
	// What is offered in shares.
	kindTimeSlice          = "timeslice"
	kindMPS                = "mps"
	kindTimeSlicePartition = "mig-timeslice"
)

// connect finds the cluster and the driver, and waits until the driver has published.
func connect(ctx context.Context) (*installation, error) {
	kubeconfig := os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
	if kubeconfig == "" {
		return nil, errors.New("KUBECONFIG is not set: name the cluster to test, or run `make test-e2e`, which brings one up")
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read KUBECONFIG %s: %w", kubeconfig, err)
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("use KUBECONFIG %s: %w", kubeconfig, err)
	}
	if _, err := client.Discovery().ServerVersion(); err != nil {
		return nil, fmt.Errorf("the cluster at %s does not answer: %w", config.Host, err)
	}
	in := &installation{config: config, client: client, image: cmp.Or(os.Getenv("MICA_E2E_WORKLOAD_IMAGE"), defaultImage)}
	if err := in.findPlugin(ctx); err != nil {
		return nil, err
	}
	if err := until(ctx, in.readDevices); err != nil {
		return nil, err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, in.node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get the node: %w", err)
	}
	in.hostname = node.Labels[corev1.LabelHostname]
	in.gpus = newReservations(len(in.devices))
	if in.baseline, err = in.claimsInUse(ctx); err != nil {
		return nil, err
	}
	return in, nil
}

func (in *installation) findPlugin(ctx context.Context) error {
	list, err := in.client.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{LabelSelector: pluginSelector})
	if err != nil {
		return fmt.Errorf("look for Mica's DaemonSet: %w", err)
	}
	if len(list.Items) != 1 {
		return fmt.Errorf("found %d DaemonSets with the labels %s, want 1: install the chart deployments/helm/mica first", len(list.Items), pluginSelector)
	}
	daemonSet := list.Items[0]
	in.plugin = objectName{daemonSet.Namespace, daemonSet.Name}
	in.serviceAccount = daemonSet.Spec.Template.Spec.ServiceAccountName
	environment := environmentOf(daemonSet.Spec.Template.Spec.Containers, pluginContainer)
	in.driver = environment["DRIVER_NAME"]
	in.cdiRoot = environment["CDI_ROOT"]
	in.pluginsDirectory = environment["KUBELET_PLUGINS_DIRECTORY_PATH"]
	in.mpsRoot = environment["MPS_ROOT"]
	if in.driver == "" || in.cdiRoot == "" || in.pluginsDirectory == "" {
		return fmt.Errorf("the container %q of DaemonSet %s lacks DRIVER_NAME, CDI_ROOT or KUBELET_PLUGINS_DIRECTORY_PATH, which the chart sets: install this version's chart", pluginContainer, in.plugin)
	}
	return nil
}

func environmentOf(containers []corev1.Container, name string) map[string]string {
	environment := map[string]string{}
	for _, container := range containers {
		if container.Name != name {
			continue
		}
		for _, variable := range container.Env {
			environment[variable.Name] = variable.Value
		}
	}
	return environment
}

// readDevices chooses the node and reads its devices from complete pools.
func (in *installation) readDevices(ctx context.Context) error {
	bySliceNode, err := in.publishedDevices(ctx)
	if err != nil {
		return err
	}
	node := os.Getenv("MICA_E2E_NODE")
	if node == "" {
		for candidate, devices := range bySliceNode {
			if len(devices) > len(bySliceNode[node]) || len(devices) == len(bySliceNode[node]) && candidate < node {
				node = candidate
			}
		}
	}
	if len(bySliceNode[node]) == 0 {
		return fmt.Errorf("driver %s has published no GPU on node %q: see the logs of DaemonSet %s", in.driver, node, in.plugin)
	}
	in.node = node
	in.devices = ofKind(bySliceNode[node], kindGPU)
	in.partitions = ofKind(bySliceNode[node], kindPartition)
	in.shares = slices.Concat(ofKind(bySliceNode[node], kindTimeSlice), ofKind(bySliceNode[node], kindMPS))
	return nil
}

// publishedDevices returns the devices of every complete pool of the driver by node.
func (in *installation) publishedDevices(ctx context.Context) (map[string][]device, error) {
	list, err := in.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourcev1.ResourceSliceSelectorDriver + "=" + in.driver,
	})
	if err != nil {
		return nil, fmt.Errorf("list ResourceSlices: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b resourcev1.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	devices := map[string][]device{}
	count := map[string]int64{}
	for _, slice := range list.Items {
		node := ptr.Deref(slice.Spec.NodeName, "")
		if node == "" || slice.Spec.Pool.Name != node {
			continue
		}
		count[node]++
		for _, d := range slice.Spec.Devices {
			devices[node] = append(devices[node], describe(d))
		}
	}
	for _, slice := range list.Items {
		if node := slice.Spec.Pool.Name; node == ptr.Deref(slice.Spec.NodeName, "") && count[node] != slice.Spec.Pool.ResourceSliceCount {
			delete(devices, node)
		}
	}
	return devices, nil
}

func describe(d resourcev1.Device) device {
	described := device{name: d.Name, Device: d, minor: -1}
	described.kind, described.uuid = described.text("type"), described.text("uuid")
	if match := minorInName.FindStringSubmatch(d.Name); match != nil {
		described.minor, _ = strconv.ParseInt(match[1], 10, 32) // digits
	}
	return described
}

var minorInName = regexp.MustCompile(`^gpu-(\d+)(-|$)`)

func ofKind(devices []device, kind string) []device {
	return slices.DeleteFunc(slices.Clone(devices), func(d device) bool { return d.kind != kind })
}

// text is the value of a text attribute of the driver's domain, "" where there is none.
func (d device) text(attribute resourcev1.QualifiedName) string {
	return ptr.Deref(d.Attributes[attribute].StringValue, "")
}

// published are all devices of the node at the start.
func (in *installation) published() []device {
	return slices.Concat(in.devices, in.shares, in.partitions)
}

// deviceByName finds a device of the start, or one that is published now: what a node
// offers changes with its policy.
func (in *installation) deviceByName(ctx context.Context, name string) (device, error) {
	named := func(d device) bool { return d.name == name }
	all := in.published()
	if !slices.ContainsFunc(all, named) {
		now, err := in.publishedDevices(ctx)
		if err != nil {
			return device{}, err
		}
		all = now[in.node]
	}
	if i := slices.IndexFunc(all, named); i >= 0 {
		return all[i], nil
	}
	return device{}, fmt.Errorf("node %s has no device %s", in.node, name)
}

// pluginPods returns the plugin's pods on the node that are not being deleted.
func (in *installation) pluginPods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := in.client.CoreV1().Pods(in.plugin.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: pluginSelector, FieldSelector: "spec.nodeName=" + in.node,
	})
	if err != nil {
		return nil, fmt.Errorf("list the plugin's pods: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil }), nil
}

// readyPlugin returns the plugin's one pod on the node once it is ready.
func (in *installation) readyPlugin(ctx context.Context) (*corev1.Pod, error) {
	pods, err := in.pluginPods(ctx)
	switch {
	case err != nil:
		return nil, err
	case len(pods) != 1:
		return nil, fmt.Errorf("the plugin has %d pods on node %s, want 1", len(pods), in.node)
	case !isReady(&pods[0]):
		return nil, fmt.Errorf("the plugin's pod %s is not ready: %s", pods[0].Name, summary(&pods[0]))
	}
	return &pods[0], nil
}

// awaitPlugin waits for the plugin's one pod on the node. One that answers a probe too late, on a busy machine, is
// not ready for a moment.
func (in *installation) awaitPlugin(t testing.TB) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	eventually(t, retryTimeout, "the plugin is ready", func(ctx context.Context) (err error) {
		pod, err = in.readyPlugin(ctx)
		return err
	})
	return pod
}

func (in *installation) daemonSet(ctx context.Context) (*appsv1.DaemonSet, error) {
	return in.client.AppsV1().DaemonSets(in.plugin.namespace).Get(ctx, in.plugin.name, metav1.GetOptions{})
}
