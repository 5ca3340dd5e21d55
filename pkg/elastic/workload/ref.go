package workload

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kinds with built-in support.
const (
	KindDeployment  = "Deployment"
	KindStatefulSet = "StatefulSet"
	KindReplicaSet  = "ReplicaSet"
	KindJob         = "Job"
)

// Ref names a workload.
type Ref struct {
	// Kind is a constant above, or another kind with its Group.
	Kind, Namespace, Name string
	Group                 string
}

// String is Kind/name or Kind.group/name, without the namespace.
func (r Ref) String() string {
	if r.Group != "" {
		return r.Kind + "." + r.Group + "/" + r.Name
	}
	return r.Kind + "/" + r.Name
}

// Scalable reports whether the workload can have more replicas; a Job can only be waited for.
func (r Ref) Scalable() bool { return r.Kind != KindJob || r.Group != "" }

// Foreign reports whether the kind has no built-in support; its objects are read by their scale.
func (r Ref) Foreign() bool { return r.Group != "" }

// apiKind is a kind of workload.
type apiKind struct {
	name, group string
	// spellings are kubectl's names for it, in lower case.
	spellings []string
	empty     func() client.Object
	template  func(client.Object) *corev1.PodTemplateSpec
	// replicas returns nil if spec.replicas is unset, which means 1.
	replicas func(client.Object) *int32
}

var apiKinds = []apiKind{
	{
		name: KindDeployment, group: appsv1.GroupName, spellings: []string{"deployment", "deployments", "deploy"},
		empty:    func() client.Object { return &appsv1.Deployment{} },
		template: func(o client.Object) *corev1.PodTemplateSpec { return &o.(*appsv1.Deployment).Spec.Template },
		replicas: func(o client.Object) *int32 { return o.(*appsv1.Deployment).Spec.Replicas },
	},
	{
		name: KindStatefulSet, group: appsv1.GroupName, spellings: []string{"statefulset", "statefulsets", "sts"},
		empty:    func() client.Object { return &appsv1.StatefulSet{} },
		template: func(o client.Object) *corev1.PodTemplateSpec { return &o.(*appsv1.StatefulSet).Spec.Template },
		replicas: func(o client.Object) *int32 { return o.(*appsv1.StatefulSet).Spec.Replicas },
	},
	{
		name: KindReplicaSet, group: appsv1.GroupName, spellings: []string{"replicaset", "replicasets", "rs"},
		empty:    func() client.Object { return &appsv1.ReplicaSet{} },
		template: func(o client.Object) *corev1.PodTemplateSpec { return &o.(*appsv1.ReplicaSet).Spec.Template },
		replicas: func(o client.Object) *int32 { return o.(*appsv1.ReplicaSet).Spec.Replicas },
	},
	{
		name: KindJob, group: batchv1.GroupName, spellings: []string{"job", "jobs"},
		empty:    func() client.Object { return &batchv1.Job{} },
		template: func(o client.Object) *corev1.PodTemplateSpec { return &o.(*batchv1.Job).Spec.Template },
		replicas: func(client.Object) *int32 { return new(int32) },
	},
}

func kindNamed(name string) (apiKind, error) {
	for _, k := range apiKinds {
		if k.name == name {
			return k, nil
		}
	}
	return apiKind{}, fmt.Errorf("workloads of kind %q are not known: name one of %s", name, oneOf())
}

// ErrUnknownKind is the error for a kind without a group and without built-in support.
var ErrUnknownKind = errors.New("which is not known")

// ParseRef parses Kind/name with kubectl's spellings, such as deploy/vllm. Other kinds have a group:
// LeaderWorkerSet.leaderworkerset.x-k8s.io/vllm. Errors are for the author of the text.
func ParseRef(namespace, text string) (Ref, error) {
	word, name, found := strings.Cut(text, "/")
	if !found {
		return Ref{}, fmt.Errorf("%q names no workload: write Kind/name, as in Deployment/vllm; kinds are %s", text, oneOf())
	}
	kind, group := splitKind(word)
	ref := Ref{Kind: kind, Group: group, Namespace: namespace, Name: name}
	i := slices.IndexFunc(apiKinds, func(k apiKind) bool {
		return slices.Contains(k.spellings, strings.ToLower(kind)) && (group == "" || group == k.group)
	})
	switch {
	case i >= 0:
		ref.Kind, ref.Group = apiKinds[i].name, ""
	case group == "":
		return Ref{}, fmt.Errorf("%q names a workload of kind %q, %w: use one of %s, or a kind with a scale subresource, with its group, as in %s",
			text, word, ErrUnknownKind, oneOf(), exampleOfGroup)
	case !kindWord.MatchString(kind) || len(validation.IsDNS1123Subdomain(group)) > 0:
		return Ref{}, fmt.Errorf("%q names a workload of kind %q, which is not a valid kind: write Kind.group/name, as in %s", text, word, exampleOfGroup)
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return Ref{}, fmt.Errorf("%q: no %s can have the name %q: %s", text, ref.Kind, name, problems[0])
	}
	return ref, nil
}

const exampleOfGroup = "LeaderWorkerSet.leaderworkerset.x-k8s.io/vllm"

var (
	kindWord = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*$`)
	// version is kubectl's between kind and group; it is ignored.
	version = regexp.MustCompile(`^v[0-9]+((alpha|beta)[0-9]+)?\.`)
)

// splitKind parses Kind, Kind.group and Kind.version.group.
func splitKind(word string) (kind, group string) {
	kind, group, _ = strings.Cut(word, ".")
	return kind, version.ReplaceAllString(group, "")
}

func oneOf() string {
	names := make([]string, len(apiKinds))
	for i, k := range apiKinds {
		names[i] = k.name
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// controllerOf returns the workload that controls an object; false for other kinds, including kinds of
// the same name in other groups.
func controllerOf(object metav1.Object) (Ref, bool) {
	owner := metav1.GetControllerOfNoCopy(object)
	if owner == nil {
		return Ref{}, false
	}
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return Ref{}, false
	}
	known := slices.ContainsFunc(apiKinds, func(k apiKind) bool { return k.name == owner.Kind && k.group == group.Group })
	return Ref{Kind: owner.Kind, Namespace: object.GetNamespace(), Name: owner.Name}, known
}
