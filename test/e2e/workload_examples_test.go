//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/test/manifest"
)

// TestWorkloadExamples applies the directories of examples/ whose containers run on the node, with the
// workload's image in place of theirs, which answers their probes, and with requests that this
// machine has. It expects the state that the files describe.
func TestWorkloadExamples(t *testing.T) {
	for _, test := range []struct {
		name  string
		gpus  int
		check func(*workloadExample)
	}{
		{"notebook", 1, func(e *workloadExample) {
			if share := e.devicesOf(e.ready("notebook", 1)); len(share) != 1 || share[0].kind != kindTimeSlice {
				e.Errorf("the notebook got %v, want one share", deviceNames(share))
			}
		}},
		{"embedding", 1, (*workloadExample).checkPartitions},
		{"same-zone", 2, (*workloadExample).checkZones},
		{"inference-gateway", 2, (*workloadExample).checkPools},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := &workloadExample{scenario: newScenario(t, test.gpus)}
			if test.name == "embedding" {
				e.needProfiles("1g.10gb")
			}
			if test.name == "same-zone" {
				e.nameZone("e2e-1")
			}
			t.Cleanup(e.endPods)
			files, err := filepath.Glob(filepath.Join(examplesDirectory, test.name, "*.yaml"))
			must(t, err, "list the files of the example")
			for _, file := range files {
				e.applyFile(file)
			}
			test.check(e)
		})
	}
}

// Every directory of examples has a test that applies it.
func TestEveryExampleIsApplied(t *testing.T) {
	tested := []string{
		"batch", "llm-serving", "prefill-decode", "queue", "warm-pool", // TestKEDA/examples
		"embedding", "inference-gateway", "notebook", "same-zone", // TestWorkloadExamples
		"multi-node", "spot", "training", // TestScaleOutExamples
		"efa",        // test/scheduler
		"scale-out",  // TestExamplesOfScaleOut
		"eks", "iam", // what a cluster is made of: test/eks and hack/docs read them
	}
	directories, err := filepath.Glob(filepath.Join(examplesDirectory, "*", "*"))
	must(t, err, "list the examples")
	for _, file := range directories {
		if name := filepath.Base(filepath.Dir(file)); !slices.Contains(tested, name) {
			t.Errorf("no test applies examples/%s", name)
		}
	}
}

// workloadExample is an example in a namespace of its own.
type workloadExample struct {
	*scenario
	objects []runtime.Object
}

// applyFile applies the objects of a file. Those without a GPU, the gateway's endpoint pickers, are
// only looked at: what they need is not here.
func (e *workloadExample) applyFile(file string) {
	e.Helper()
	content, err := os.ReadFile(file)
	must(e, err, "read the example")
	objects, err := manifest.Read(content)
	must(e, err, "decode %s", file)
	applier := e.applier()
	for _, object := range objects {
		looked := false
		switch object := object.(type) {
		case *appsv1.Deployment:
			looked = len(object.Spec.Template.Spec.ResourceClaims) == 0
			e.runHere(&object.Spec.Template.Spec)
		case *corev1.PersistentVolumeClaim:
			e.provide(object)
		}
		loose, err := loosen(object)
		must(e, err, "encode an object of %s", file)
		applier.apply(loose, looked)
	}
	e.objects = append(e.objects, objects...)
}

// runHere lets a pod run on this machine: by the workload's image, and within its CPUs and memory.
func (e *workloadExample) runHere(pod *corev1.PodSpec) {
	pod.NodeSelector = map[string]string{corev1.LabelHostname: e.hostname}
	for i := range pod.Containers {
		container := &pod.Containers[i]
		container.Image, container.Command = e.image, nil
		container.Args = []string{"serve", fmt.Sprint(container.Ports[0].ContainerPort)}
		container.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: quantityOf("10m"), corev1.ResourceMemory: quantityOf("32Mi")}
	}
}

// provide makes a volume for the claim, in place of a StorageClass's provisioner: a directory of the node.
func (s *scenario) provide(claim *corev1.PersistentVolumeClaim) {
	s.Helper()
	name, directory := s.namespace+"-"+claim.Name, "/tmp/"+s.namespace+"-"+claim.Name
	volumes := s.client.CoreV1().PersistentVolumes()
	_, err := volumes.Create(s.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{testLabel: ""}},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests,
			ClaimRef:                      &corev1.ObjectReference{Namespace: s.namespace, Name: claim.Name},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{
				Path: directory, Type: ptr.To(corev1.HostPathDirectoryOrCreate),
			}},
		},
	}, metav1.CreateOptions{})
	must(s, err, "create a volume for %s", claim.Name)
	s.Cleanup(func() {
		s.endPods() // which use it
		if err := errors.Join(volumes.Delete(context.Background(), name, metav1.DeleteOptions{}), os.RemoveAll(directory)); err != nil {
			s.Errorf("remove volume %s: %v", name, err)
		}
	})
}

// endPods ends the pods without their grace periods, which are long, and what would replace them.
func (s *scenario) endPods() {
	ctx, cancel := context.WithTimeout(context.Background(), goneTimeout+retryTimeout)
	defer cancel()
	background, all := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}, metav1.ListOptions{}
	err := errors.Join(
		s.client.AppsV1().Deployments(s.namespace).DeleteCollection(ctx, background, all),
		s.client.AppsV1().StatefulSets(s.namespace).DeleteCollection(ctx, background, all),
		s.client.BatchV1().Jobs(s.namespace).DeleteCollection(ctx, background, all),
		until(ctx, func(ctx context.Context) error {
			err := s.client.CoreV1().Pods(s.namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(1))}, all)
			return errors.Join(err, s.deletePods(ctx))
		}),
	)
	if err != nil {
		s.Errorf("end the pods of the example: %v", err)
	}
}

// ready waits until so many pods of an app are Ready, and gives them.
func (s *scenario) ready(app string, count int) (pods []corev1.Pod) {
	s.Helper()
	eventually(s, nodeTimeout, fmt.Sprintf("%d pods of %s are Ready", count, app), func(ctx context.Context) error {
		list, err := s.client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err
		}
		pods = list.Items
		states := fmt.Sprintf("there are %d:", len(pods))
		all := len(pods) == count
		for i := range pods {
			all = all && isReady(&pods[i])
			states += " " + pods[i].Name + ": " + summary(&pods[i])
		}
		if !all {
			return errors.New(states)
		}
		return nil
	})
	return pods
}

// devicesOf are the devices of pods, as each pod sees its own.
func (s *scenario) devicesOf(pods []corev1.Pod) (all []device) {
	s.Helper()
	for _, pod := range pods {
		all = append(all, s.expectOwnDevices(pod.Name)...)
	}
	return all
}

func (e *workloadExample) checkPartitions() {
	partitions := e.devicesOf(e.ready("embedding", 2))
	e.expectDistinct(map[string][]device{"the first": partitions[:1], "the second": partitions[1:]})
	for _, partition := range partitions {
		if profile := partition.text("profile"); profile != "1g.10gb" && profile != "1g.10gb+me" {
			e.Errorf("a replica got %s, want 1g.10gb", profile)
		}
	}
}

// nameZone gives the node a zone, if it has none, for the time of the test.
func (s *scenario) nameZone(zone string) {
	s.Helper()
	label := func(value any) error {
		patch, err := mergePatch(fields{"metadata": fields{"labels": fields{corev1.LabelTopologyZone: value}}})
		if err == nil {
			_, err = s.client.CoreV1().Nodes().Patch(context.Background(), s.node, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		return err
	}
	node, err := s.client.CoreV1().Nodes().Get(s.Context(), s.node, metav1.GetOptions{})
	must(s, err, "get the node")
	if node.Labels[corev1.LabelTopologyZone] != "" {
		return
	}
	must(s, label(zone), "give the node a zone")
	s.Cleanup(func() { must(s, label(nil), "take the node's zone away") })
}

func (e *workloadExample) checkZones() {
	e.devicesOf(e.ready("zonal", 2))
	node, err := e.client.CoreV1().Nodes().Get(e.Context(), e.node, metav1.GetOptions{})
	must(e, err, "get the node")
	zone := node.Labels[corev1.LabelTopologyZone]
	eventually(e, startTimeout, "both endpoints have the hint of zone "+zone, func(ctx context.Context) error {
		list, err := e.client.DiscoveryV1().EndpointSlices(e.namespace).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=zonal"})
		if err != nil {
			return err
		}
		hinted := 0
		for _, endpoints := range list.Items {
			for _, endpoint := range endpoints.Endpoints {
				if endpoint.Hints != nil && len(endpoint.Hints.ForZones) == 1 && endpoint.Hints.ForZones[0].Name == zone {
					hinted++
				}
			}
		}
		if hinted != 2 {
			return fmt.Errorf("%d have, of %+v", hinted, list.Items)
		}
		return nil
	})
}

// checkPools expects that each InferencePool selects the Ready pods of its model, at a port that they
// have, and that the routes lead to the pools.
func (e *workloadExample) checkPools() {
	pools := map[string]bool{}
	for _, object := range e.objects {
		pool, ok := object.(*unstructured.Unstructured)
		if !ok || pool.GetKind() != "InferencePool" {
			continue
		}
		app, _, err := unstructured.NestedString(pool.Object, "spec", "selector", "matchLabels", "app")
		must(e, err, "read the pool's selector")
		ports, _, err := unstructured.NestedSlice(pool.Object, "spec", "targetPorts")
		must(e, err, "read the pool's ports")
		pods := e.ready(app, 1)
		e.devicesOf(pods)
		if port, _ := ports[0].(fields); fmt.Sprint(port["number"]) != fmt.Sprint(pods[0].Spec.Containers[0].Ports[0].ContainerPort) {
			e.Errorf("InferencePool %s has the ports %v, its pods %v", pool.GetName(), ports, pods[0].Spec.Containers[0].Ports)
		}
		pools[pool.GetName()] = true
	}
	for _, object := range e.objects {
		route, ok := object.(*unstructured.Unstructured)
		if !ok || route.GetKind() != "HTTPRoute" {
			continue
		}
		rules, _, err := unstructured.NestedSlice(route.Object, "spec", "rules")
		must(e, err, "read the route's rules")
		for _, rule := range rules {
			backends, _, err := unstructured.NestedSlice(rule.(fields), "backendRefs")
			must(e, err, "read the rule's backends")
			name := fmt.Sprint(backends[0].(fields)["name"])
			if !pools[name] {
				e.Errorf("a route leads to InferencePool %s, which is none of %v", name, pools)
			}
			delete(pools, name)
		}
	}
	if len(pools) > 0 {
		e.Errorf("no route leads to %v", pools)
	}
}
