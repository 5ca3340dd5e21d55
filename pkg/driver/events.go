package driver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// events tell users what they have to know, on the objects that they look at. The
// library drops repetitions and what the API server does not take.
type events struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	sink        record.EventSink
	nodeName    string
}

func newEvents(client kubernetes.Interface, nodeName string) *events {
	broadcaster := record.NewBroadcaster()
	return &events{
		broadcaster: broadcaster,
		recorder:    broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "mica-kubelet-plugin", Host: nodeName}),
		sink:        &typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")},
		nodeName:    nodeName,
	}
}

// run sends events until ctx ends.
func (e *events) run(ctx context.Context) error {
	watch := e.broadcaster.StartRecordingToSink(e.sink)
	defer e.broadcaster.Shutdown()
	defer watch.Stop()
	<-ctx.Done()
	return ctx.Err()
}

// warnNode tells of this node. Kubernetes' own components name a node in the UID
// of its events, too.
func (e *events) warnNode(reason, sentence string) {
	e.recorder.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.nodeName, UID: types.UID(e.nodeName)}, corev1.EventTypeWarning, reason, sentence)
}

// warnPod tells of a pod on this node.
func (e *events) warnPod(pod types.NamespacedName, uid types.UID, reason, sentence string) {
	e.recorder.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: uid}, corev1.EventTypeWarning, reason, sentence)
}
