// Package cordon says which DeviceTaintRules keep new claims from a GPU, or from all GPUs of a node, and
// which claims have them now. It finds GPUs in an inventory, and rules among those that somebody has
// read. It writes nothing to the cluster.
package cordon

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/kubectl/inventory"
	"github.com/mica-gpu/mica/pkg/slice"
)

const (
	// Label is on the rules of this package. Its value is OfGPU or OfNode.
	Label  = "mica.gpu/cordon"
	OfGPU  = "gpu"
	OfNode = "node"

	annotationGPU    = "mica.gpu/cordoned-gpu"
	annotationUUID   = "mica.gpu/cordoned-uuid"
	annotationReason = "mica.gpu/cordon-reason"
	labelManagedBy   = "app.kubernetes.io/managed-by"
	manager          = "kubectl-gpu"
)

// Effects are those that a cordon can have.
var Effects = []resourceapi.DeviceTaintEffect{
	resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute, resourceapi.DeviceTaintEffectNone,
}

// ParseEffect is an error for what is none.
func ParseEffect(text string) (resourceapi.DeviceTaintEffect, error) {
	if effect := resourceapi.DeviceTaintEffect(text); slices.Contains(Effects, effect) {
		return effect, nil
	}
	return "", fmt.Errorf("--effect %q is none: choose NoSchedule to keep new claims away, NoExecute to evict pods as well, or None to only have reported what NoExecute would do", text)
}

// Target is what is cordoned.
type Target struct {
	// Kind is OfGPU or OfNode.
	Kind string
	Node string
	// GPUs is the one, or those of the node.
	GPUs []inventory.GPU
}

// FindGPU takes NODE/GPU or a UUID.
func FindGPU(all inventory.Inventory, text string) (Target, error) {
	node, name, byName := strings.Cut(text, "/")
	var ofNode []string
	for _, g := range all.GPUs {
		if byName && g.Node == node {
			ofNode = append(ofNode, g.Name)
		}
		if byName && g.Node == node && g.Name == name || !byName && g.UUID == text && text != "" {
			if len(g.Devices) == 0 {
				return Target{}, fmt.Errorf("GPU %s of node %s publishes no device, so there is nothing to cordon: cordon the node, by kubectl gpu cordon node %s", g.Name, g.Node, g.Node)
			}
			return Target{Kind: OfGPU, Node: g.Node, GPUs: []inventory.GPU{g}}, nil
		}
		if byName && g.Node == node && slices.Contains(g.Devices, name) {
			return Target{}, fmt.Errorf("device %s is a part of GPU %s, and a GPU is cordoned with all of its parts: give %s/%s", name, g.Name, node, g.Name)
		}
	}
	switch {
	case !byName:
		return Target{}, fmt.Errorf("no published GPU has the UUID %q: give NODE/GPU, such as n1/gpu-0, or a UUID as kubectl gpu list -o wide prints it", text)
	case len(ofNode) == 0:
		return Target{}, noGPUs(node)
	}
	return Target{}, fmt.Errorf("node %s has no GPU %q: it has %s", node, name, strings.Join(ofNode, ", "))
}

func noGPUs(node string) error {
	return fmt.Errorf("node %q publishes no GPU: kubectl gpu list has the nodes that do", node)
}

// FindNode is a node with all of its GPUs.
func FindNode(all inventory.Inventory, node string) (Target, error) {
	target := Target{Kind: OfNode, Node: node}
	for _, g := range all.GPUs {
		if g.Node == node {
			target.GPUs = append(target.GPUs, g)
		}
	}
	if len(target.GPUs) == 0 {
		return Target{}, noGPUs(node)
	}
	return target, nil
}

// String is the target for people.
func (t Target) String() string {
	if t.Kind == OfGPU {
		return "GPU " + t.GPUs[0].Name + " of node " + t.Node
	}
	return fmt.Sprintf("node %s with %s", t.Node, count(len(t.GPUs), "GPU"))
}

// Rules taint all devices of the target, in all shapes. A rule selects by driver, pool and device name
// alone (DeviceTaintSelector in k8s.io/api/resource/v1: selectors by class and CEL were taken out in
// 1.35), so that a node has a rule per pool, and a GPU a rule per device.
func (t Target) Rules(effect resourceapi.DeviceTaintEffect, reason string) []resourceapi.DeviceTaintRule {
	var rules []resourceapi.DeviceTaintRule
	seen := map[devices.PoolID]bool{}
	for _, g := range t.GPUs {
		pool := devices.PoolID{Driver: g.Driver, Name: g.Pool}
		if t.Kind == OfNode {
			if !seen[pool] {
				rules = append(rules, t.rule(pool, "", effect, reason))
			}
			seen[pool] = true
			continue
		}
		for _, device := range g.Devices {
			rule := t.rule(pool, device, effect, reason)
			rule.Annotations[annotationGPU] = g.Name
			if g.UUID != "" {
				rule.Annotations[annotationUUID] = g.UUID
			}
			rules = append(rules, rule)
		}
	}
	return rules
}

func (t Target) rule(pool devices.PoolID, device string, effect resourceapi.DeviceTaintEffect, reason string) resourceapi.DeviceTaintRule {
	rule := resourceapi.DeviceTaintRule{
		TypeMeta: metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "DeviceTaintRule"},
		ObjectMeta: metav1.ObjectMeta{
			Name:        ruleName(t.Kind, pool, device),
			Labels:      map[string]string{labelManagedBy: manager, Label: t.Kind},
			Annotations: map[string]string{},
		},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: &pool.Driver, Pool: &pool.Name},
			Taint:          resourceapi.DeviceTaint{Key: slice.TaintCordoned, Effect: effect},
		},
	}
	if device != "" {
		rule.Spec.DeviceSelector.Device = &device
	}
	if reason != "" {
		rule.Annotations[annotationReason] = reason
	}
	return rule
}

// ruleName is that of the one rule for a device, or a pool.
func ruleName(kind string, pool devices.PoolID, device string) string {
	parts := []string{"mica-cordon-" + kind, strings.ReplaceAll(pool.Name, "/", ".")}
	if device != "" {
		parts = append(parts, device)
	}
	if pool.Driver != slice.DefaultDriver {
		parts = append(parts, pool.Driver)
	}
	name := strings.Join(parts, ".")
	if len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return parts[0] + "." + hex.EncodeToString(sum[:])
}

// Ours tells rules of this package.
func Ours(rule *resourceapi.DeviceTaintRule) bool {
	return rule.Labels[labelManagedBy] == manager && rule.Labels[Label] != ""
}

// OfDriver are the rules for a driver's devices.
func OfDriver(all []resourceapi.DeviceTaintRule, driver string) []resourceapi.DeviceTaintRule {
	return slices.DeleteFunc(slices.Clone(all), func(rule resourceapi.DeviceTaintRule) bool {
		s := rule.Spec.DeviceSelector
		return s == nil || s.Driver == nil || *s.Driver != driver
	})
}

// Found are the rules of a target that exist.
type Found struct {
	Rules []resourceapi.DeviceTaintRule
	// Note says what stays cordoned, or nothing.
	Note string
}

// ForNode are the rules by which a node was cordoned. The GPUs that were cordoned by themselves stay so.
func ForNode(all []resourceapi.DeviceTaintRule, node string) Found {
	var found Found
	var others []string
	for _, rule := range all {
		switch {
		case !Ours(&rule) || poolOf(rule) != node:
		case rule.Labels[Label] == OfNode:
			found.Rules = append(found.Rules, rule)
		default:
			others = append(others, node+"/"+rule.Annotations[annotationGPU])
		}
	}
	slices.Sort(others)
	if others = slices.Compact(others); len(others) > 0 {
		found.Note = fmt.Sprintf("what was cordoned by itself stays so: %s", strings.Join(others, ", "))
	}
	return found
}

// ForGPU are the rules by which a GPU was cordoned, which is given as NODE/GPU or by its UUID. It may
// be gone since.
func ForGPU(all []resourceapi.DeviceTaintRule, text string) Found {
	node, name, byName := strings.Cut(text, "/")
	var found Found
	for _, rule := range all {
		if !Ours(&rule) || rule.Labels[Label] != OfGPU {
			continue
		}
		if byName && poolOf(rule) == node && rule.Annotations[annotationGPU] == name || !byName && rule.Annotations[annotationUUID] == text {
			found.Rules = append(found.Rules, rule)
			node = poolOf(rule)
		}
	}
	if of := ForNode(all, node); len(of.Rules) > 0 {
		found.Note = fmt.Sprintf("all GPUs of node %s are cordoned: kubectl gpu uncordon node %s", node, node)
	}
	return found
}

// Sentence says what became of the rules.
func (f Found) Sentence(kind, name string, dryRun bool) string {
	verb := "is uncordoned"
	if dryRun {
		verb = "would be uncordoned"
	}
	text := fmt.Sprintf("%s %s %s (%s).", upper(kind), name, verb, count(len(f.Rules), "DeviceTaintRule"))
	if len(f.Rules) == 0 {
		text = fmt.Sprintf("%s %s was not cordoned by kubectl gpu cordon.", upper(kind), name)
	}
	if f.Note != "" {
		text += " " + upper(f.Note) + "."
	}
	return text
}

// poolOf is the pool's name, which is that of its node.
func poolOf(rule resourceapi.DeviceTaintRule) string {
	if rule.Spec.DeviceSelector == nil || rule.Spec.DeviceSelector.Pool == nil {
		return ""
	}
	return *rule.Spec.DeviceSelector.Pool
}

// Reason is why somebody has cordoned what the rule selects, or nothing.
func Reason(rule *resourceapi.DeviceTaintRule) string { return rule.Annotations[annotationReason] }

// Held are the claims that have something of the target, by namespace and name.
func (t Target) Held() []inventory.Hold {
	var all []inventory.Hold
	for _, g := range t.GPUs {
		for _, hold := range g.Claims {
			if !hold.Admin {
				all = append(all, hold)
			}
		}
	}
	slices.SortFunc(all, func(a, b inventory.Hold) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Device, b.Device))
	})
	return all
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
