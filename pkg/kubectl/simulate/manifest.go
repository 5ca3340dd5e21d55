package simulate

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
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

const (
	// MaxBytes bounds what is read of all files together.
	MaxBytes = 16 << 20
	// maxObjects and maxPods bound what is in them.
	maxObjects = 20_000
	maxPods    = 10_000
)

// Manifest is what users write in files.
type Manifest struct {
	// Ignored are objects that have no part in where pods go, as Kind/name.
	Ignored []string

	claims     []resourceapi.ResourceClaim
	templates  []resourceapi.ResourceClaimTemplate
	classes    []resourceapi.DeviceClass
	priorities []schedulingv1.PriorityClass
	policies   []v1alpha1.GPUPolicy
	groups     []v1alpha1.GPUNodeGroup
	budgets    []v1alpha1.GPUBudget
	// nodes and slices are those of machines that do not exist.
	nodes  []corev1.Node
	slices []resourceapi.ResourceSlice
	pods   []*corev1.Pod
	// podNames are the pods' UIDs, which are made of their names.
	podNames map[types.UID]bool
}

// Reader reads files into a manifest.
type Reader struct {
	// Namespace is that of objects that name none.
	Namespace string

	manifest Manifest
	objects  int
	bytes    int
	decoder  runtime.Decoder
	scheme   *runtime.Scheme
}

// NewReader knows nothing yet.
func NewReader(namespace string) (*Reader, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, resourceapi.AddToScheme, schedulingv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register the kinds of objects: %w", err)
		}
	}
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	return &Reader{Namespace: namespace, decoder: codecs.UniversalDeserializer(), scheme: scheme}, nil
}

// Read adds the objects of a file, which errors call by its name. Fields that no such object has are
// errors, as they are for kubectl apply.
func (r *Reader) Read(name string, from io.Reader) error {
	content, err := io.ReadAll(io.LimitReader(from, int64(MaxBytes-r.bytes)+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if r.bytes += len(content); r.bytes > MaxBytes {
		return fmt.Errorf("%s is too large: of all files together %d MiB are read; simulate fewer objects at once", name, MaxBytes>>20)
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = r.document(document)
		}
		if err != nil {
			return fmt.Errorf("%s, document %d: %w", name, number, err)
		}
	}
}

// header is what every object has.
type header struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Items []runtime.RawExtension `json:"items"`
}

func (r *Reader) document(document []byte) error {
	if empty(document) {
		return nil
	}
	var head header
	if err := yaml.Unmarshal(document, &head); err != nil {
		return fmt.Errorf("it is no YAML or JSON: %s", strings.Join(strings.Fields(err.Error()), " "))
	}
	if head.Kind == "List" && head.APIVersion == "v1" {
		for i, item := range head.Items {
			if err := r.document(item.Raw); err != nil {
				return fmt.Errorf("item %d: %w", i+1, err)
			}
		}
		return nil
	}
	if r.objects++; r.objects > maxObjects {
		return fmt.Errorf("there are more than %d objects: simulate fewer at once", maxObjects)
	}
	if head.Kind == "" || head.APIVersion == "" {
		return errors.New("it has no kind or no apiVersion: write an object as for kubectl apply")
	}
	kind := schema.FromAPIVersionAndKind(head.APIVersion, head.Kind)
	if want, read := kinds[kind.GroupKind()]; !read {
		r.manifest.Ignored = append(r.manifest.Ignored, head.Kind+"/"+head.Metadata.Name)
		return nil
	} else if want != kind.Version {
		return fmt.Errorf("%s %s has apiVersion %s, which is not read: write %s", head.Kind, head.Metadata.Name, head.APIVersion,
			schema.GroupVersion{Group: kind.Group, Version: want})
	}
	object, _, err := r.decoder.Decode(document, nil, nil)
	if err != nil {
		// The decoder's error has a line for each field.
		return fmt.Errorf("%s %s: %s", head.Kind, head.Metadata.Name, strings.Join(strings.Fields(err.Error()), " "))
	}
	if head.Metadata.Name == "" {
		return fmt.Errorf("a %s has no metadata.name: give it one", head.Kind)
	}
	return r.manifest.add(object, r.Namespace)
}

// empty tells a document of comments alone.
func empty(document []byte) bool {
	for line := range bytes.Lines(document) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}

// kinds are those that decide where pods go, with the version that is read.
var kinds = map[schema.GroupKind]string{
	{Kind: "Pod"}:                                              "v1",
	{Group: "apps", Kind: "Deployment"}:                        "v1",
	{Group: "apps", Kind: "ReplicaSet"}:                        "v1",
	{Group: "apps", Kind: "StatefulSet"}:                       "v1",
	{Group: "batch", Kind: "Job"}:                              "v1",
	{Group: "batch", Kind: "CronJob"}:                          "v1",
	{Group: "resource.k8s.io", Kind: "ResourceClaim"}:          "v1",
	{Group: "resource.k8s.io", Kind: "ResourceClaimTemplate"}:  "v1",
	{Group: "resource.k8s.io", Kind: "DeviceClass"}:            "v1",
	{Group: "scheduling.k8s.io", Kind: "PriorityClass"}:        "v1",
	{Group: v1alpha1.GroupVersion.Group, Kind: "GPUPolicy"}:    v1alpha1.GroupVersion.Version,
	{Group: v1alpha1.GroupVersion.Group, Kind: "GPUNodeGroup"}: v1alpha1.GroupVersion.Version,
	{Group: v1alpha1.GroupVersion.Group, Kind: "GPUBudget"}:    v1alpha1.GroupVersion.Version,
}

func (m *Manifest) add(object runtime.Object, namespace string) error {
	if scoped, is := object.(metav1.Object); is && namespaced(object) && scoped.GetNamespace() == "" {
		scoped.SetNamespace(namespace)
	}
	switch o := object.(type) {
	case *resourceapi.ResourceClaim:
		if o.Status.Allocation != nil {
			return fmt.Errorf("ResourceClaim %s has a status: leave it out, as the scheduler writes it", o.Name)
		}
		m.claims = append(m.claims, *o)
	case *resourceapi.ResourceClaimTemplate:
		m.templates = append(m.templates, *o)
	case *resourceapi.DeviceClass:
		m.classes = append(m.classes, *o)
	case *schedulingv1.PriorityClass:
		m.priorities = append(m.priorities, *o)
	case *v1alpha1.GPUPolicy:
		m.policies = append(m.policies, *o)
	case *v1alpha1.GPUNodeGroup:
		m.groups = append(m.groups, *o)
	case *v1alpha1.GPUBudget:
		m.budgets = append(m.budgets, *o)
	default:
		return m.addWorkload(object)
	}
	return nil
}

func namespaced(object runtime.Object) bool {
	switch object.(type) {
	case *resourceapi.DeviceClass, *schedulingv1.PriorityClass, *v1alpha1.GPUPolicy, *v1alpha1.GPUNodeGroup, *v1alpha1.GPUBudget:
		return false
	}
	return true
}

// Manifest is what was read. Without a pod there is nothing to simulate.
func (r *Reader) Manifest() (*Manifest, error) {
	if len(r.manifest.pods) > 0 {
		return &r.manifest, nil
	}
	text := "there is no pod in the files: give Pods, Deployments, ReplicaSets, StatefulSets, Jobs or CronJobs"
	if len(r.manifest.Ignored) > 0 {
		text += ", and not only " + strings.Join(r.manifest.Ignored[:min(len(r.manifest.Ignored), 3)], ", ")
	}
	return nil, errors.New(text)
}

// named finds an object among those of the files.
func named[T any](all []T, is func(*T) bool) *T {
	if at := slices.IndexFunc(all, func(one T) bool { return is(&one) }); at >= 0 {
		return &all[at]
	}
	return nil
}

// Policies are the GPUPolicies that were read. It is an error if something else was, or nothing.
func (r *Reader) Policies() ([]*v1alpha1.GPUPolicy, error) {
	if len(r.manifest.policies) == 0 || len(r.manifest.policies) != r.objects {
		return nil, errors.New("a file of policies has at least one GPUPolicy, and nothing else: write it as for kubectl apply")
	}
	return r.manifest.Policies(), nil
}
