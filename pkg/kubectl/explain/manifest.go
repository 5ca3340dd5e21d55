package explain

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

const (
	// maxBytes is the total size of all files.
	maxBytes = 16 << 20
	maxPods  = 10_000
)

// Manifest has the objects of files: pods, and the claims, templates, classes and policies that decide where they go.
type Manifest struct {
	// Ignored are the objects of all other kinds, as Kind/name.
	Ignored []string

	namespace string
	scheme    *runtime.Scheme
	bytes     int
	pods      []*corev1.Pod
	// workloads has Kind/name of the object that a pod belongs to.
	workloads map[types.UID]string
	objects   []client.Object
}

// NewManifest returns an empty manifest. Objects without a namespace get this one.
func NewManifest(namespace string) (*Manifest, error) {
	m := &Manifest{namespace: namespace, scheme: runtime.NewScheme(), workloads: map[types.UID]string{}}
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, resourceapi.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(m.scheme); err != nil {
			return nil, fmt.Errorf("register the kinds of objects: %w", err)
		}
	}
	return m, nil
}

// Empty reports whether the files have no pod.
func (m *Manifest) Empty() bool { return len(m.pods) == 0 }

// Read adds the objects of a file. As with kubectl apply, an unknown field is an error.
func (m *Manifest) Read(name string, from io.Reader) error {
	content, err := io.ReadAll(io.LimitReader(from, int64(maxBytes-m.bytes)+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if m.bytes += len(content); m.bytes > maxBytes {
		return fmt.Errorf("%s is too large: all files together may have %d MiB", name, maxBytes>>20)
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = m.document(document)
		}
		if err != nil {
			return fmt.Errorf("%s, document %d: %w", name, number, err)
		}
	}
}

// header is the type and the metadata of an object.
type header struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Items []runtime.RawExtension `json:"items"`
}

func (m *Manifest) document(document []byte) error {
	var head header
	if err := yaml.Unmarshal(document, &head); err != nil {
		return fmt.Errorf("not YAML or JSON: %w", oneLine(err))
	}
	if head.Kind == "List" && head.APIVersion == "v1" {
		for i, item := range head.Items {
			if err := m.document(item.Raw); err != nil {
				return fmt.Errorf("item %d: %w", i+1, err)
			}
		}
		return nil
	}
	if text, err := yaml.YAMLToJSON(document); err == nil && string(text) == "null" {
		return nil // comments alone
	}
	if head.Kind == "" || head.APIVersion == "" {
		return errors.New("no kind or no apiVersion: write an object as for kubectl apply")
	}
	kind := schema.FromAPIVersionAndKind(head.APIVersion, head.Kind)
	if known := m.scheme.VersionsForGroupKind(kind.GroupKind()); len(known) > 0 && !m.scheme.Recognizes(kind) {
		return fmt.Errorf("%s %s has apiVersion %s: use %s", head.Kind, head.Metadata.Name, head.APIVersion, known[0])
	}
	object, err := m.scheme.New(kind)
	if err != nil || !decides(object) {
		m.Ignored = append(m.Ignored, head.Kind+"/"+head.Metadata.Name)
		return nil
	}
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		return fmt.Errorf("%s %s: %w", head.Kind, head.Metadata.Name, oneLine(err))
	}
	if head.Metadata.Name == "" {
		return fmt.Errorf("a %s has no metadata.name: give it one", head.Kind)
	}
	return m.add(object.(client.Object))
}

// oneLine is an error of the decoder, which has a line per field.
func oneLine(err error) error { return errors.New(strings.Join(strings.Fields(err.Error()), " ")) }

// decides reports whether objects of this type decide where pods go.
func decides(object runtime.Object) bool {
	switch object.(type) {
	case *corev1.Pod, *appsv1.Deployment, *appsv1.StatefulSet, *batchv1.Job,
		*resourceapi.ResourceClaim, *resourceapi.ResourceClaimTemplate, *resourceapi.DeviceClass, *v1alpha1.GPUPolicy:
		return true
	}
	return false
}

func (m *Manifest) add(object client.Object) error {
	switch o := object.(type) {
	case *corev1.Pod:
		return m.addPod("Pod", o)
	case *appsv1.Deployment:
		return m.addPods("Deployment", o, o.Spec.Template, ptr.Deref(o.Spec.Replicas, 1))
	case *appsv1.StatefulSet:
		return m.addPods("StatefulSet", o, o.Spec.Template, ptr.Deref(o.Spec.Replicas, 1))
	case *batchv1.Job:
		parallel := ptr.Deref(o.Spec.Parallelism, 1)
		return m.addPods("Job", o, o.Spec.Template, min(parallel, ptr.Deref(o.Spec.Completions, parallel)))
	case *resourceapi.ResourceClaim:
		if o.Status.Allocation != nil {
			return fmt.Errorf("ResourceClaim %s has a status: leave it out, the scheduler writes it", o.Name)
		}
		m.setNamespace(o)
	case *resourceapi.ResourceClaimTemplate:
		m.setNamespace(o)
	}
	m.objects = append(m.objects, object)
	return nil
}

func (m *Manifest) setNamespace(object metav1.Object) {
	if object.GetNamespace() == "" {
		object.SetNamespace(m.namespace)
	}
}

// addPods adds the pods of a workload. They are named as those of a StatefulSet.
func (m *Manifest) addPods(kind string, owner metav1.Object, template corev1.PodTemplateSpec, count int32) error {
	if count < 0 {
		return fmt.Errorf("%s %s has %d replicas: give 0 or more", kind, owner.GetName(), count)
	}
	for i := range count {
		pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
		pod.Namespace, pod.Name = owner.GetNamespace(), fmt.Sprintf("%s-%d", owner.GetName(), i)
		if err := m.addPod(kind+"/"+owner.GetName(), pod); err != nil {
			return fmt.Errorf("%s %s: %w", kind, owner.GetName(), err)
		}
	}
	return nil
}

func (m *Manifest) addPod(workload string, pod *corev1.Pod) error {
	m.setNamespace(pod)
	pod.UID = types.UID("planned-" + pod.Namespace + "/" + pod.Name)
	switch _, twice := m.workloads[pod.UID]; {
	case len(m.pods) == maxPods:
		return fmt.Errorf("more than %d pods: give fewer at once", maxPods)
	case pod.Spec.NodeName != "":
		return fmt.Errorf("pod %s names node %s, so no scheduler places it: leave out spec.nodeName", pod.Name, pod.Spec.NodeName)
	case twice:
		return fmt.Errorf("two pods are named %s/%s: rename one", pod.Namespace, pod.Name)
	}
	m.workloads[pod.UID] = workload
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	for _, container := range slices.Concat(pointers(pod.Spec.InitContainers), pointers(pod.Spec.Containers)) {
		setRequests(&container.Resources)
	}
	m.pods = append(m.pods, pod)
	return nil
}

func pointers[T any](items []T) []*T {
	all := make([]*T, len(items))
	for i := range items {
		all[i] = &items[i]
	}
	return all
}

// setRequests sets requests to the limits where they are unset, as the API server does for pods (SetDefaults_Pod in
// k8s.io/kubernetes/pkg/apis/core/v1/defaults.go): most manifests have GPUs as limits alone.
func setRequests(r *corev1.ResourceRequirements) {
	for name, limit := range r.Limits {
		if _, set := r.Requests[name]; set {
			continue
		}
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		r.Requests[name] = limit.DeepCopy()
	}
}
