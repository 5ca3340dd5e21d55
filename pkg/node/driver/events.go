package driver

import (
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// events sends Events on the objects that users look at. The library aggregates repetitions. Events
// before start or after stop are dropped.
type events struct {
	client   kubernetes.Interface
	nodeName string
	recorder atomic.Pointer[record.EventRecorderLogger]
}

func newEvents(client kubernetes.Interface, nodeName string) *events {
	return &events{client: client, nodeName: nodeName}
}

// start sends events until stop is called.
func (e *events) start() (stop func()) {
	broadcaster := record.NewBroadcaster()
	watch := broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: e.client.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "mica-kubelet-plugin", Host: e.nodeName})
	e.recorder.Store(&recorder)
	return func() {
		e.recorder.Store(nil)
		watch.Stop()
		broadcaster.Shutdown()
	}
}

// WarnNode sends an Event about this node. Like Kubernetes' components, it uses the node's name as
// UID.
func (e *events) WarnNode(reason, sentence string) {
	e.send(e.node(), corev1.EventTypeWarning, reason, sentence)
}

func (e *events) node() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.nodeName, UID: types.UID(e.nodeName)}
}

// warnPod sends an Event about a pod on this node.
func (e *events) warnPod(pod types.NamespacedName, uid types.UID, reason, sentence string) {
	e.send(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: uid}, corev1.EventTypeWarning, reason, sentence)
}

func (e *events) send(object *corev1.ObjectReference, kind, reason, sentence string) {
	if recorder := e.recorder.Load(); recorder != nil {
		(*recorder).Event(object, kind, reason, sentence)
	}
}
