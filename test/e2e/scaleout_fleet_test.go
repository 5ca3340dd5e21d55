//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/test/autoscaler/scan"
	"github.com/mica-gpu/mica/test/fleet/cloud"
)

// nodeGroup is a group of the cloud, and its GPUNodeGroup.
type nodeGroup struct {
	// Promised is the instance type; Real is the machine that boots, where it is another.
	Promised, Real string
	Min, Max       int
	Price, Pairing string
	SliceDelay     time.Duration
	OutOfStock     bool
	// ScaleInAfter is how long a node is empty before the controller ends it; empty: never.
	ScaleInAfter string
	// Unneeded is how long a node is empty before it is removed; zero for never.
	Unneeded time.Duration
	// Workers are nodes as the examples expect them: with the usual taint of GPU nodes, local disks and
	// huge pages.
	Workers bool
	// Capacity is the capacity type; empty: ON_DEMAND.
	Capacity string
	// Timeout is the GPUNodeGroup's provisionTimeout beside the stand-in; zero: nodeTimeout. A machine has to have
	// joined by then, or else nothing grows for five minutes: of all groups, one grows in a scan.
	Timeout time.Duration
}

const (
	placeholder = "placeholder"
	h200        = "p5e.48xlarge"
	h100        = "p5.48xlarge"
	l4          = "g6.xlarge"
	t4          = "g4dn.xlarge"
)

var scaleGroups = map[string]nodeGroup{
	"placeholder": {Promised: h200, Max: 5, Pairing: placeholder},
	"nine":        {Promised: h200, Max: 5, Pairing: placeholder},
	"partitions":  {Promised: h200, Max: 5, Pairing: placeholder},
	"too-small":   {Promised: l4, Max: 5, Pairing: placeholder},
	"wrong":       {Promised: h200, Real: l4, Max: 5, Pairing: placeholder},
	"direct":      {Promised: h200, Max: 5, Pairing: "direct", ScaleInAfter: "5s"},
	"observed":    {Promised: l4, Max: 5, Pairing: "observe"},
	"gated":       {Promised: l4, Max: 1, Pairing: placeholder, SliceDelay: time.Hour, Timeout: 90 * time.Second},
	"killed":      {Promised: h200, Max: 5, Pairing: placeholder},
	"discovered":  {Promised: l4, Max: 5},
	"headroom":    {Promised: l4, Max: 5, Pairing: placeholder},
	"bench":       {Promised: h200, Max: 5, Pairing: placeholder},
	"multi-node":  {Promised: h100, Max: 2, Pairing: "observe", Workers: true},
	"training":    {Promised: l4, Max: 2, Pairing: "observe", Workers: true, Capacity: "SPOT"},
	"keda-chain":  {Promised: l4, Max: 5, Pairing: placeholder, Unneeded: 5 * time.Second},
	"keda-cap":    {Promised: h200, Max: 1, Pairing: placeholder},
	"keda-gang":   {Promised: h200, Max: 1, Pairing: placeholder},
	"conformance": {Promised: l4, Min: 1, Max: 2, Pairing: placeholder, Unneeded: 5 * time.Second},
	"keda-seen":   {Promised: t4, Max: 1, Pairing: placeholder, Price: "0.526"},
}

func groupOf(t testing.TB, name string) nodeGroup {
	t.Helper()
	group, known := scaleGroups[name]
	if !known {
		t.Fatalf("the tests have no node group %s", name)
	}
	return group
}

// fleet is the cloud with its node groups and EKS, which play beside the cluster: kwok, fleet
// and autoscaler-sim run on this machine, eks-sim in a pod, where the controller reaches it.
type fleet struct {
	cloud *cloud.Client
	// placeholders are those that there ever were, and unready the nodes that stopped being
	// Ready, by their group.
	placeholders, unready sightings
}

var startFleet = sync.OnceValues(newFleet)

func theFleet(t testing.TB) *fleet {
	t.Helper()
	f, err := startFleet()
	must(t, err, "find the cloud of the scale-out tests")
	return f
}

func newFleet() (*fleet, error) {
	address := os.Getenv("MICA_FLEET")
	if address == "" {
		return nil, errors.New("MICA_FLEET does not say where test/fleet serves: run `make test-e2e`, which starts it")
	}
	client, err := cloud.NewClient(address)
	if err != nil {
		return nil, err
	}
	f := &fleet{cloud: client, placeholders: newSightings(), unready: newSightings()}
	ctx := context.Background() // as long as the suite
	f.watchPlaceholders(ctx)
	f.watchNodes(ctx)
	return f, nil
}

// What nodes have if a group's are as the examples expect them.
var (
	workerTaint     = corev1.Taint{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}
	workerResources = corev1.ResourceList{corev1.ResourceEphemeralStorage: quantityOf("3000Gi"), "hugepages-2Mi": quantityOf("10Gi")}
)

// machines is the group as the cloud has it.
func (g nodeGroup) machines(name string) cloud.Group {
	group := cloud.Group{
		Name: name, ScalingGroup: "eks-" + name + "-00000000-1111-2222-3333-444444444444",
		Min: g.Min, Max: g.Max, InstanceType: g.Promised, Machine: g.Real, CapacityType: g.Capacity,
		Labels: map[string]string{groupSetLabel: name},
		Taints: []corev1.Taint{
			{Key: "kwok.x-k8s.io/node", Value: "fake", Effect: corev1.TaintEffectNoSchedule},
			{Key: "startup-taint.cluster-autoscaler.kubernetes.io/mica", Value: "starting", Effect: corev1.TaintEffectNoSchedule},
		},
		Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: quantityOf("180"), corev1.ResourceMemory: quantityOf("1900Gi"), corev1.ResourcePods: quantityOf("110"),
		},
		GPUs: 8, BootDelay: metav1.Duration{Duration: 2 * time.Second}, SliceDelay: metav1.Duration{Duration: g.SliceDelay},
		ScaleDownUnneeded: metav1.Duration{Duration: g.Unneeded},
	}
	if g.Workers {
		group.Taints = append(group.Taints, workerTaint)
		maps.Copy(group.Allocatable, workerResources)
	}
	if g.OutOfStock {
		group.Failure = &cloud.Failure{Code: "InsufficientInstanceCapacity", Message: "there is no machine of this type"}
	}
	return group
}

// sightings are names that were seen since the suite began, by node group, so that none is missed.
type sightings struct {
	mutex  *sync.Mutex
	groups map[string]sets.Set[string]
}

func newSightings() sightings {
	return sightings{mutex: &sync.Mutex{}, groups: map[string]sets.Set[string]{}}
}

func (s sightings) note(group, name string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.groups[group] == nil {
		s.groups[group] = sets.New[string]()
	}
	s.groups[group].Insert(name)
}

func (s sightings) of(group string) []string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return sets.List(s.groups[group])
}

// watchPlaceholders notes each placeholder that is ever made.
func (f *fleet) watchPlaceholders(ctx context.Context) {
	f.watch(ctx, "pods", placeholderLabel, &corev1.Pod{}, cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		pod := object.(*corev1.Pod)
		f.placeholders.note(pod.Labels[placeholderLabel], string(pod.UID))
	}})
}

// watchNodes notes each node of a group that was Ready and is not any more.
func (f *fleet) watchNodes(ctx context.Context) {
	f.watch(ctx, "nodes", nodegroupLabel, &corev1.Node{}, cache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		was, node := before.(*corev1.Node), after.(*corev1.Node)
		if !readySince(was).IsZero() && readySince(node).IsZero() {
			f.unready.note(node.Labels[nodegroupLabel], node.Name)
		}
	}})
}

// watch calls the handler for the objects that have the label, until ctx ends.
func (*fleet) watch(ctx context.Context, resource, label string, kind runtime.Object, handler cache.ResourceEventHandler) {
	labelled := func(options *metav1.ListOptions) { options.LabelSelector = label }
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewFilteredListWatchFromClient(under.client.CoreV1().RESTClient(), resource, metav1.NamespaceAll, labelled),
		ObjectType:    kind, Handler: handler,
	})
	go informer.RunWithContext(ctx)
}

// readySince is zero for a node that is not Ready.
func readySince(node *corev1.Node) time.Time {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return condition.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// eksPort is where eks-sim serves on the node, and eksPod the pod that it is.
const (
	eksPort = "18600"
	eksPod  = "eks-sim"
)

// atEKSAlone is held by the test that has eks-sim: the controller knows one address.
var atEKSAlone sync.Mutex

// startEKS runs eks-sim with one group, for the time of the test, and hands its wishes to the
// cloud.
func (s *scaleOut) startEKS(group string) {
	s.Helper()
	atEKSAlone.Lock()
	s.Cleanup(func() {
		defer atEKSAlone.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), goneTimeout)
		defer cancel()
		if err := until(ctx, s.endEKS); err != nil {
			s.Errorf("end eks-sim: %v", err)
		}
	})
	pod := s.plainPod(eksPod)
	pod.Spec.HostNetwork = true
	pod.Spec.Containers[0] = corev1.Container{
		Name: "eks", Image: "mica.local/eks-sim:dev", ImagePullPolicy: corev1.PullNever,
		Args: []string{
			"--listen=" + os.Getenv("MICA_NODE_IP") + ":" + eksPort, "--cluster=e2e",
			fmt.Sprintf("--nodegroup=name=%s,max=%d,type=%s", group, groupOf(s, group).Max, groupOf(s, group).Promised),
		},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.Parse(eksPort)}},
			PeriodSeconds: 1,
		},
	}
	pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(1))
	s.createPod(pod)
	s.waitRunning(eksPod)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.followEKS(ctx, group) }()
	s.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			s.Errorf("hand the size of %s from EKS to the cloud: %v", group, err)
		}
	})
}

// endEKS is nil once eks-sim is gone, and with it its port.
func (s *scaleOut) endEKS(ctx context.Context) error {
	err := s.client.CoreV1().Pods(s.namespace).Delete(ctx, eksPod, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return cmp.Or(err, errors.New("it is still there"))
}

// eksGroup is what the test reads and sets of a group at eks-sim.
type eksGroup struct {
	Desired int `json:"desired"`
	// Instances are lifecycle states by instance ID.
	Instances map[string]string `json:"instances"`
}

// followEKS is what EKS and EC2 Auto Scaling do with a size: as many machines run, and those that
// are to terminate do.
func (s *scaleOut) followEKS(ctx context.Context, group string) error {
	asked := 0
	for {
		err := s.followOnce(ctx, group, &asked)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollInterval):
			if err != nil {
				s.Logf("EKS: %v", err)
			}
		}
	}
}

// followOnce ends machines by name first: a lower size alone ends any.
func (s *scaleOut) followOnce(ctx context.Context, group string, asked *int) error {
	nodes, err := s.nodesOf(ctx, group)
	if err != nil {
		return err
	}
	running := map[string]string{}
	for i := range nodes {
		running[cloud.InstanceOf(&nodes[i])] = "InService"
	}
	body, err := json.Marshal(map[string]any{"instances": running})
	if err != nil {
		return err
	}
	if _, err := s.atEKS(s.client.CoreV1().RESTClient().Post(), group).Body(body).DoRaw(ctx); err != nil {
		return err
	}
	state, err := s.readEKS(ctx, group)
	if err != nil {
		return err
	}
	for instance, lifecycle := range state.Instances {
		if lifecycle == "Terminating" {
			if err := theFleet(s).cloud.Terminate(ctx, instance); err != nil {
				return err
			}
		}
	}
	if state.Desired == *asked {
		return nil
	}
	if err := theFleet(s).cloud.SetDesired(ctx, group, state.Desired); err != nil {
		return err
	}
	*asked = state.Desired
	return nil
}

// atEKS is a request for a group at eks-sim.
func (s *scaleOut) atEKS(request *rest.Request, group string) *rest.Request {
	return request.Namespace(s.namespace).Resource("pods").Name(eksPod + ":" + eksPort).SubResource("proxy").Suffix("sim/groups/" + group)
}

func (s *scaleOut) readEKS(ctx context.Context, group string) (eksGroup, error) {
	var state eksGroup
	content, err := s.atEKS(s.client.CoreV1().RESTClient().Get(), group).DoRaw(ctx)
	if err != nil {
		return state, err
	}
	return state, json.Unmarshal(content, &state)
}

// eksDesired is the size that EKS was asked for.
func (s *scaleOut) eksDesired(group string) int {
	s.Helper()
	state, err := s.readEKS(s.Context(), group)
	must(s, err, "ask EKS about %s", group)
	return state.Desired
}

// addNode does what an administrator does to a group that no controller scales.
func (s *scaleOut) addNode(group string) {
	s.Helper()
	nodes, err := s.nodesOf(s.Context(), group)
	must(s, err, "list the nodes of %s", group)
	must(s, theFleet(s).cloud.SetDesired(s.Context(), group, len(nodes)+1), "ask the cloud for a node of %s", group)
}

// autoscalerDelay is what the real Cluster Autoscaler takes longer than the stand-in: its AWS
// provider looks at scaling groups once per minute (kubernetes/autoscaler,
// cluster-autoscaler/cloudprovider/aws/aws_manager.go, refreshInterval). So it hears up to a minute
// late of a new group, and again of a machine that does not come.
func autoscalerDelay() time.Duration {
	if os.Getenv("MICA_REAL_AUTOSCALER") != "" {
		return 2 * time.Minute
	}
	return 0
}

// templateAge is how long Cluster Autoscaler looks at a node that is Ready before it takes it for
// what new ones of the group will be: kubernetes-sigs/cluster-autoscaler,
// pkg/processors/nodeinfosprovider/mixed_nodeinfos_processor.go, stabilizationDelay.
const templateAge = time.Minute

// awaitLiveTemplate waits until the autoscaler has looked at a node of the group that was complete
// for as long.
func (s *scaleOut) awaitLiveTemplate(group string) {
	s.Helper()
	s.expectGroup(group, "starting", int64(0))
	scaling := groupOf(s, group).machines(group).Scaling()
	eventually(s, templateAge+nodeTimeout, "the autoscaler knows what nodes of "+group+" have", func(ctx context.Context) error {
		nodes, err := s.nodesOf(ctx, group)
		if err != nil {
			return err
		}
		scanned, ready, err := s.lastScan(ctx, scaling)
		if err != nil {
			return err
		}
		for _, node := range nodes {
			if since := readySince(&node); ready > 0 && !since.IsZero() && scanned.After(since.Add(templateAge)) {
				return nil
			}
		}
		return fmt.Errorf("it has scanned at %s, with %d nodes that it knew to be ready, of %d", scanned, ready, len(nodes))
	})
}

// lastScan is when the autoscaler has looked, and how many nodes of the scaling group it had then.
func (s *scaleOut) lastScan(ctx context.Context, scaling string) (at time.Time, ready int, err error) {
	content, err := s.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "cluster-autoscaler-status", metav1.GetOptions{})
	if err != nil {
		return at, 0, err
	}
	var status scan.Status
	if err := yaml.Unmarshal([]byte(content.Data["status"]), &status); err != nil {
		return at, 0, err
	}
	for _, group := range status.NodeGroups {
		if group.Name == scaling {
			at, err = time.Parse(scan.TimeFormat, status.Time)
			return at, group.Health.NodeCounts.Registered.Ready, err
		}
	}
	return at, 0, fmt.Errorf("the autoscaler does not know %s", scaling)
}
