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

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

const (
	// annotationSafeToEvict keeps Cluster Autoscaler from removing the node on which a
	// placeholder waits for the node's slices.
	annotationSafeToEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict"

	maxPodsText = 1024
	maxKinds    = 32
	// nobody is the user of that name on most systems.
	nobody = 65534
)

// ordinals gives the least numbers that no placeholder of the group has. A controller whose
// cache lags behind makes the same name again, and not a second placeholder.
func (d *placing) ordinals() func() int {
	taken := map[string]bool{}
	for _, pod := range d.s.View.Placeholders {
		taken[pod.Name] = true
	}
	next := 0
	return func() int {
		for taken[placeholderName(d.group.Object.Name, next)] {
			next++
		}
		next++
		return next - 1
	}
}

// placeholderName has room for the whole of an ordinal in a host's name.
func placeholderName(group string, ordinal int) string {
	sum := sha256.Sum256([]byte(group))
	return fmt.Sprintf("mica-%s-%s-%d",
		strings.TrimRight(strings.ReplaceAll(group[:min(len(group), 40)], ".", "-"), "-"),
		hex.EncodeToString(sum[:4]), ordinal)
}

// pod is a placeholder for a node.
func (d *placing) pod(node scaleout.NewNode, ordinal int) *corev1.Pod {
	group, options := d.group.Object, d.s.Placeholder
	controller := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: options.Namespace,
			Name:      placeholderName(group.Name, ordinal),
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
				Controller: &controller,
			}},
		},
		Spec: d.podSpec(node),
	}
}

func (d *placing) podSpec(node scaleout.NewNode) corev1.PodSpec {
	options := d.s.Placeholder
	none, never, root := int64(0), false, true
	user := int64(nobody)
	return corev1.PodSpec{
		NodeSelector:                  d.group.Object.Spec.Provider.Selector(),
		Affinity:                      affinity(d.group),
		Tolerations:                   tolerations(d.group),
		PriorityClassName:             options.PriorityClass,
		TerminationGracePeriodSeconds: &none,
		AutomountServiceAccountToken:  &never,
		EnableServiceLinks:            &never,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   &root,
			RunAsUser:      &user,
			RunAsGroup:     &user,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name:      "placeholder",
			Image:     options.Image,
			Args:      []string{"pause"},
			Resources: corev1.ResourceRequirements{Requests: d.requests(node)},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &never,
				ReadOnlyRootFilesystem:   &root,
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}
}

// affinity keeps a placeholder from nodes that the group has, and from other placeholders: what
// is left for it is a new node, and one for each.
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

// otherNodes are nodes that the group does not have yet. One without the label of its host's
// name would pass for such, and is kept out by its own name.
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

// tolerations are for what a node of the group has, also while it starts: a placeholder is put on its
// node as soon as that joins. From then on Cluster Autoscaler neither adds another node for it when its
// own clocks run out, of which it gives groups of AWS none of their own, nor removes the node.
func tolerations(group *view.Group) []corev1.Toleration {
	taints := templateTaints(group)
	var tolerated []corev1.Toleration
	for _, taint := range template.WithoutStartup(taints) {
		tolerated = append(tolerated, corev1.Toleration{
			Key: taint.Key, Operator: corev1.TolerationOpEqual, Value: taint.Value, Effect: taint.Effect,
		})
	}
	return append(tolerated, template.StartupTolerations(taints)...)
}

func templateTaints(group *view.Group) []corev1.Taint {
	if group.Template != nil && group.Template.Node != nil {
		return group.Template.Node.Spec.Taints
	}
	return group.Object.Spec.Template.Taints
}

// requests are the pods', as far as the group's nodes have them at all: the estimate of a
// node may be a little off, and a placeholder that is too large for every node moves nobody.
// Other resources are left out, since Cluster Autoscaler does not know of an empty group's nodes
// whether they have them. A placeholder for pods under a budget has none: where Cluster Autoscaler knows
// what a node will offer, it puts these pods on the coming node in its simulation, and would add
// another node for a placeholder that has no room beside them.
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

// allocatable is what a new node has besides its DaemonSets.
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

// podsText names the pods for which a node is, as far as there is room.
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

// labelValue is a kind as a label can have it.
func labelValue(kind string) string {
	value := strings.ReplaceAll(kind, "/", ".")
	if len(validation.IsValidLabelValue(value)) == 0 {
		return value
	}
	sum := sha256.Sum256([]byte(kind))
	return hex.EncodeToString(sum[:8])
}
