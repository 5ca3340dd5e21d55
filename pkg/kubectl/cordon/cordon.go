// Package cordon makes the DeviceTaintRules that keep new claims from a GPU, or from all GPUs of a node, finds them
// again, and reports which claims have the devices now. It reads and writes nothing in the cluster.
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
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/fleet"
	"github.com/mica-gpu/mica/pkg/slice"
)

const (
	// Label is on the rules of this package, with the value OfGPU or OfNode.
	Label  = "mica.gpu/cordon"
	OfGPU  = "gpu"
	OfNode = "node"

	annotationGPU    = "mica.gpu/cordoned-gpu"
	annotationUUID   = "mica.gpu/cordoned-uuid"
	annotationReason = "mica.gpu/cordon-reason"
	labelManagedBy   = "app.kubernetes.io/managed-by"
	manager          = "kubectl-gpu"
)

// Effects are those of a cordon.
var Effects = []resourceapi.DeviceTaintEffect{
	resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute, resourceapi.DeviceTaintEffectNone,
}

// ParseEffect parses the flag --effect.
func ParseEffect(text string) (resourceapi.DeviceTaintEffect, error) {
	if effect := resourceapi.DeviceTaintEffect(text); slices.Contains(Effects, effect) {
		return effect, nil
	}
	return "", fmt.Errorf("unknown effect %q: use NoSchedule to keep new claims away, NoExecute to evict pods as well, or None to report what NoExecute would do", text)
}

// Target is a GPU or a node to cordon.
type Target struct {
	// Kind is OfGPU or OfNode.
	Kind string
	Node string
	// GPUs is the GPU, or those of the node.
	GPUs []fleet.GPU
}

// FindGPU finds the GPU with a name NODE/GPU or a UUID.
func FindGPU(all []fleet.GPU, text string) (Target, error) {
	node, name, byName := strings.Cut(text, "/")
	if !byName {
		at := slices.IndexFunc(all, func(g fleet.GPU) bool { return g.UUID == text && text != "" })
		if at < 0 {
			return Target{}, fmt.Errorf("no published GPU has the UUID %q: give NODE/GPU, such as n1/gpu-0, or a UUID of kubectl gpu list -o wide", text)
		}
		return targetGPU(all[at])
	}
	target, err := FindNode(all, node)
	if err != nil {
		return Target{}, err
	}
	var names []string
	for _, g := range target.GPUs {
		switch {
		case g.Name == name:
			return targetGPU(g)
		case slices.Contains(g.Devices, name):
			return Target{}, fmt.Errorf("device %s is part of GPU %s, which can be cordoned only as a whole: give %s/%s", name, g.Name, node, g.Name)
		}
		names = append(names, g.Name)
	}
	return Target{}, fmt.Errorf("node %s has no GPU %q: it has %s", node, name, strings.Join(names, ", "))
}

func targetGPU(g fleet.GPU) (Target, error) {
	if len(g.Devices) == 0 {
		return Target{}, fmt.Errorf("GPU %s of node %s publishes no device, so there is nothing to cordon: run kubectl gpu cordon node %s", g.Name, g.Node, g.Node)
	}
	return Target{Kind: OfGPU, Node: g.Node, GPUs: []fleet.GPU{g}}, nil
}

// FindNode finds a node with all of its GPUs.
func FindNode(all []fleet.GPU, node string) (Target, error) {
	target := Target{Kind: OfNode, Node: node}
	for _, g := range all {
		if g.Node == node {
			target.GPUs = append(target.GPUs, g)
		}
	}
	if len(target.GPUs) == 0 {
		return Target{}, fmt.Errorf("node %q publishes no GPU: see the nodes in kubectl gpu list", node)
	}
	return target, nil
}

func (t Target) String() string {
	if t.Kind == OfGPU {
		return "GPU " + t.GPUs[0].Name + " of node " + t.Node
	}
	return fmt.Sprintf("node %s with %s", t.Node, excerpt.Count(len(t.GPUs), "GPU"))
}

// Rules taint all devices of the target, in all shapes: a node has a rule per pool, and a GPU a rule per device. A rule
// selects by driver, pool and device name alone (DeviceTaintSelector in k8s.io/api/resource/v1).
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

// ruleName is the name of the only rule for a device or a pool.
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

// Ours reports whether kubectl gpu cordon has made the rule.
func Ours(rule *resourceapi.DeviceTaintRule) bool {
	return rule.Labels[labelManagedBy] == manager && rule.Labels[Label] != ""
}

// OfDriver returns the rules for a driver's devices.
func OfDriver(all []resourceapi.DeviceTaintRule, driver string) []resourceapi.DeviceTaintRule {
	return slices.DeleteFunc(slices.Clone(all), func(rule resourceapi.DeviceTaintRule) bool {
		s := rule.Spec.DeviceSelector
		return s == nil || s.Driver == nil || *s.Driver != driver
	})
}

// Found has the existing rules of a target.
type Found struct {
	Rules []resourceapi.DeviceTaintRule
	// Note says what stays cordoned; empty: nothing does.
	Note string
}

// ForNode returns the rules of a node. GPUs that were cordoned by themselves stay cordoned.
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
		found.Note = fmt.Sprintf("still cordoned by themselves: %s", strings.Join(others, ", "))
	}
	return found
}

// ForGPU returns the rules of a GPU, by NODE/GPU or its UUID. The GPU may not exist any more.
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
		found.Note = fmt.Sprintf("all GPUs of node %s are still cordoned: run kubectl gpu uncordon node %s", node, node)
	}
	return found
}

// Sentence reports what uncordon did.
func (f Found) Sentence(kind, name string, dryRun bool) string {
	verb := "is uncordoned"
	if dryRun {
		verb = "would be uncordoned"
	}
	text := fmt.Sprintf("%s %s %s (%s).", upper(kind), name, verb, excerpt.Count(len(f.Rules), "DeviceTaintRule"))
	if len(f.Rules) == 0 {
		text = fmt.Sprintf("%s %s was not cordoned by kubectl gpu cordon.", upper(kind), name)
	}
	if f.Note != "" {
		text += " " + upper(f.Note) + "."
	}
	return text
}

// poolOf is the name of the rule's pool, which is its node's.
func poolOf(rule resourceapi.DeviceTaintRule) string {
	if rule.Spec.DeviceSelector == nil || rule.Spec.DeviceSelector.Pool == nil {
		return ""
	}
	return *rule.Spec.DeviceSelector.Pool
}

// Held returns the claims with devices of the target, by namespace and name.
func (t Target) Held() []fleet.Holding {
	var all []fleet.Holding
	for _, g := range t.GPUs {
		for _, hold := range g.Claims {
			if !hold.Admin {
				all = append(all, hold)
			}
		}
	}
	slices.SortFunc(all, func(a, b fleet.Holding) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Device, b.Device))
	})
	return all
}
