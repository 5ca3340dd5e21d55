package pair

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

const (
	// annotationSafeToEvict keeps Cluster Autoscaler from removing the node of a placeholder before it is complete.
	annotationSafeToEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict"

	maxPodsText = 1024
	maxKinds    = 32
	// unprivileged is the conventional user ID without rights.
	unprivileged = 65534
)

// names returns the names of the group's next placeholders, with the least free ordinals: a controller whose cache is behind
// creates the same name again, not a second placeholder.
func (d *placing) names() func() string {
	taken := map[string]bool{}
	for _, pod := range d.s.View.Placeholders {
		taken[pod.Name] = true
	}
	next := 0
	return func() string {
		for {
			name := placeholderName(d.group.Object.Name, next)
			if next++; !taken[name] {
				return name
			}
		}
	}
}

// placeholderName fits into a host name with any ordinal.
func placeholderName(group string, ordinal int) string {
	sum := sha256.Sum256([]byte(group))
	return fmt.Sprintf("mica-%s-%s-%d",
		strings.TrimRight(strings.ReplaceAll(group[:min(len(group), 40)], ".", "-"), "-"),
		hex.EncodeToString(sum[:4]), ordinal)
}

// pod is the placeholder for a node.
func (d *placing) pod(node scaleout.NewNode, name string) *corev1.Pod {
	group := d.group.Object
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.s.Placeholder.Namespace,
			Name:      name,
			Labels: map[string]string{
				v1alpha1.LabelNodeGroup: group.Name,
				v1alpha1.LabelKind:      labelValue(firstKind(node.Kinds)),
			},
			Annotations: map[string]string{
				v1alpha1.AnnotationPods:  podsText(node),
				v1alpha1.AnnotationKinds: strings.Join(node.Kinds[:min(len(node.Kinds), maxKinds)], ","),
				annotationSafeToEvict:    "false",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(),
				Kind:       "GPUNodeGroup",
				Name:       group.Name,
				UID:        group.UID,
				Controller: ptr.To(true),
			}},
		},
		Spec: d.podSpec(node),
	}
}

func (d *placing) podSpec(node scaleout.NewNode) corev1.PodSpec {
	options := d.s.Placeholder
	return corev1.PodSpec{
		NodeSelector:                  d.group.Object.Spec.Provider.Selector(),
		Affinity:                      affinity(d.group),
		Tolerations:                   tolerations(d.group),
		PriorityClassName:             options.PriorityClass,
		TerminationGracePeriodSeconds: ptr.To(int64(0)),
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   ptr.To(true),
			RunAsUser:      ptr.To(int64(unprivileged)),
			RunAsGroup:     ptr.To(int64(unprivileged)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name:      "placeholder",
			Image:     options.Image,
			Args:      []string{"pause"},
			Resources: corev1.ResourceRequirements{Requests: d.requests(node)},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false),
				ReadOnlyRootFilesystem:   ptr.To(true),
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}
}

// affinity keeps a placeholder from the group's present nodes and from other placeholders, so that it needs a node of its own.
func affinity(group *view.Group) *corev1.Affinity {
	a := &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname,
			LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: v1alpha1.LabelNodeGroup, Operator: metav1.LabelSelectorOpExists,
			}}},
		}},
	}}
	if term := otherNodes(group); len(term.MatchExpressions)+len(term.MatchFields) > 0 {
		a.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{term},
		}}
	}
	return a
}

// otherNodes excludes the group's present nodes by their host name label, or by name if they lack it.
func otherNodes(group *view.Group) corev1.NodeSelectorTerm {
	var term corev1.NodeSelectorTerm
	var hosts []string
	for i := range group.Nodes {
		node := group.Nodes[i].Object
		if host := node.Labels[corev1.LabelHostname]; host != "" {
			hosts = append(hosts, host)
			continue
		}
		term.MatchFields = append(term.MatchFields, corev1.NodeSelectorRequirement{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpNotIn, Values: []string{node.Name},
		})
	}
	if len(hosts) > 0 {
		slices.Sort(hosts)
		term.MatchExpressions = []corev1.NodeSelectorRequirement{{
			Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: hosts,
		}}
	}
	return term
}

// tolerations are for the taints of the group's nodes, and for startup taints: a placeholder is bound as soon as its node
// joins. From then on, Cluster Autoscaler neither adds another node when its timeouts pass, nor removes this one.
func tolerations(group *view.Group) []corev1.Toleration {
	taints := templateTaints(group)
	var tolerated []corev1.Toleration
	for _, taint := range group.StartupTaints.Without(taints) {
		tolerated = append(tolerated, corev1.Toleration{
			Key: taint.Key, Operator: corev1.TolerationOpEqual, Value: taint.Value, Effect: taint.Effect,
		})
	}
	return append(tolerated, group.StartupTaints.Tolerations(taints)...)
}

func templateTaints(group *view.Group) []corev1.Taint {
	if group.Template != nil && group.Template.Node != nil {
		return group.Template.Node.Spec.Taints
	}
	return group.Object.Spec.Template.Taints
}

// requests are the pods', at most a node's: a placeholder that is too large for every node would have no effect. Only CPU and
// memory count, since Cluster Autoscaler may not know an empty group's other resources. A placeholder for pods under a budget
// has none: Cluster Autoscaler may simulate these pods on the coming node, and would add another node if the placeholder did
// not fit beside them.
func (d *placing) requests(node scaleout.NewNode) corev1.ResourceList {
	requests := corev1.ResourceList{}
	if slices.ContainsFunc(node.Pods, func(name types.NamespacedName) bool {
		pod := d.s.index.pending[name]
		return pod != nil && d.s.ours(pod)
	}) {
		return requests
	}
	wanted := node.Requests
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		quantity, ok := wanted[name]
		if !ok {
			continue
		}
		if allocatable, known := d.allocatable(name); known && allocatable.Cmp(quantity) < 0 {
			quantity = allocatable
		}
		if quantity.Sign() > 0 {
			requests[name] = quantity.DeepCopy()
		}
	}
	return requests
}

// allocatable is what a new node's DaemonSets leave.
func (d *placing) allocatable(name corev1.ResourceName) (resource.Quantity, bool) {
	if d.group.Template == nil || d.group.Template.Node == nil {
		return resource.Quantity{}, false
	}
	allocatable, ok := d.group.Template.Node.Status.Allocatable[name]
	if !ok {
		return resource.Quantity{}, false
	}
	allocatable = allocatable.DeepCopy()
	for _, daemon := range d.s.index.daemons[d.group.Object.Name] {
		used := resourcehelper.PodRequests(daemon, resourcehelper.PodResourcesOptions{})
		allocatable.Sub(used[name])
	}
	return allocatable, true
}

// podsText names the pods of a node, bounded.
func podsText(node scaleout.NewNode) string {
	var text strings.Builder
	for i, pod := range node.Pods {
		name := pod.String()
		if text.Len()+len(name) > maxPodsText {
			text.WriteString(" and " + strconv.Itoa(len(node.Pods)-i) + " more")
			break
		}
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString(name)
	}
	return text.String()
}

// labelValue is a kind as a valid label value.
func labelValue(kind string) string {
	value := strings.ReplaceAll(kind, "/", ".")
	if len(validation.IsValidLabelValue(value)) == 0 {
		return value
	}
	sum := sha256.Sum256([]byte(kind))
	return hex.EncodeToString(sum[:8])
}
