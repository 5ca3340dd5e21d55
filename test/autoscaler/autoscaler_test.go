package main

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/mica-gpu/mica/test/autoscaler/scan"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fleet/cloud"
)

func waiting(name, group string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeSelector: map[string]string{cloud.LabelNodegroup: group}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
		}},
	}
}

// rig is an autoscaler with a cloud of one group, whose scaling group has another name.
func rig(t *testing.T, cluster *fake.Clientset) (*autoscaler, *cloud.Cloud) {
	t.Helper()
	machines := cloud.New(cluster.CoreV1().Nodes(), time.Now, []cloud.Group{{
		Name: "h100", ScalingGroup: "eks-h100-0001", Max: 5, InstanceType: "p5.48xlarge", GPUs: 8,
		Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("100"),
		},
	}})
	server := httptest.NewServer(machines.Handler())
	t.Cleanup(server.Close)
	client, err := cloud.NewClient(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	a := newAutoscaler(cluster, client, scan.Options{PriorityCutoff: -10})
	a.broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: cluster.CoreV1().Events("")})
	t.Cleanup(a.broadcaster.Shutdown)
	return a, machines
}

// events waits for that many Events.
func events(t *testing.T, cluster *fake.Clientset, count int) []corev1.Event {
	t.Helper()
	var list *corev1.EventList
	fixture.Eventually(t, "the events", func() (err error) {
		if list, err = cluster.CoreV1().Events("").List(t.Context(), metav1.ListOptions{}); err != nil {
			return err
		}
		if len(list.Items) < count {
			return fmt.Errorf("%d of %d are there", len(list.Items), count)
		}
		return nil
	})
	return list.Items
}

func scanOnce(t *testing.T, a *autoscaler) {
	t.Helper()
	if err := a.once(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAScanSetsSizesAndWritesEventsAndStatus(t *testing.T) {
	cluster := fake.NewClientset(waiting("one", "h100"))
	a, machines := rig(t, cluster)
	scanOnce(t, a)
	if got := machines.States()[0].Desired; got != 1 {
		t.Errorf("asked for %d machines", got)
	}
	event := events(t, cluster, 1)[0]
	if event.Reason != scan.TriggeredScaleUp || event.Message != "pod triggered scale-up: [{eks-h100-0001 0->1 (max: 5)}]" ||
		event.Source.Component != "cluster-autoscaler" || event.Type != corev1.EventTypeNormal {
		t.Errorf("the Event is %+v", event)
	}
	written, err := cluster.CoreV1().ConfigMaps(statusNamespace).Get(t.Context(), statusName, metav1.GetOptions{})
	if err != nil || !strings.Contains(written.Data["status"], "name: eks-h100-0001") || written.Annotations[annotationUpdated] == "" {
		t.Errorf("wrote %+v, %v", written, err)
	}
}

func TestAnEventIsWrittenOnceInFiveMinutes(t *testing.T) {
	cluster := fake.NewClientset(waiting("one", "nowhere"))
	a, _ := rig(t, cluster)
	scanOnce(t, a)
	scanOnce(t, a)
	// The recorder's queue is in order: when this Event is there, all are.
	a.recorder.Event(waiting("last", ""), corev1.EventTypeNormal, "Last", "the last one")
	for _, event := range events(t, cluster, 2) {
		if event.Reason == scan.NotTriggerScaleUp && event.Count > 1 {
			t.Errorf("there are %d Events", event.Count)
		}
	}
}

func TestAnAutoscalerThatEndsDeletesItsStatus(t *testing.T) {
	cluster := fake.NewClientset()
	a, _ := rig(t, cluster)
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.run(ctx, time.Hour) }()
	status := func() error {
		_, err := cluster.CoreV1().ConfigMaps(statusNamespace).Get(t.Context(), statusName, metav1.GetOptions{})
		return err
	}
	fixture.Eventually(t, "the status", status)
	end()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	if err := status(); !apierrors.IsNotFound(err) {
		t.Errorf("the status is not deleted: %v", err)
	}
}

func TestTheAWSProvidersViewOfAGroup(t *testing.T) {
	group := view(cloud.State{Group: cloud.Group{Name: "h100", GPUs: 8, Failure: &cloud.Failure{Code: "none"}}, Desired: 3, Failed: 1})
	if gpus := group.Allocatable[resourceGPU]; gpus.Value() != 8 {
		t.Errorf("it has %s GPUs by number", gpus.String())
	}
	if group.Name != "h100" || group.Selector[cloud.LabelNodegroup] != "h100" || group.Target != 3 || group.Failed != 1 || group.Code != "none" {
		t.Errorf("got %+v", group)
	}
}
