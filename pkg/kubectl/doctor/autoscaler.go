package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
)

func autoscalerChecks() []Check {
	return []Check{{
		Name:     "autoscaler-version",
		Severity: Error,
		Looks:    "the tag of the image of Cluster Autoscaler's Deployment. One that a cloud hosts cannot be seen",
		Why:      "Cluster Autoscaler knows DRA without a flag since 1.35. An older one adds no node for a pod with a claim, and removes nodes whose GPUs are in use.",
		Fix:      "kubectl --namespace NAMESPACE set image deployment/DEPLOYMENT CONTAINER=registry.k8s.io/autoscaling/cluster-autoscaler:v1.35.0",
		Source:   "kubernetes/autoscaler, docs/dra_support.md",
		needs:    []Kind{KindDeployments, KindGroups},
		find:     autoscalerVersion,
	}, {
		Name:     "autoscaler-clocks",
		Severity: Warning,
		Looks:    "--max-node-provision-time and --max-node-startup-time of Cluster Autoscaler's Deployment, and the condition " + v1alpha1.ConditionOutlastsAutoscaler + " of GPUNodeGroups",
		Why:      "Cluster Autoscaler gives up on a node that takes longer than its flags say, which are 15m by default, and adds another.",
		Fix:      `kubectl --namespace NAMESPACE patch deployment DEPLOYMENT --type=json --patch '[{"op":"add","path":"/spec/template/spec/containers/INDEX/COMMAND/-","value":"FLAG=DURATION"}]'`,
		Source:   "kubernetes/autoscaler, config/flags/flags.go; docs on scale-out, Set Cluster Autoscaler's clocks",
		needs:    []Kind{KindDeployments, KindGroups},
		find:     autoscalerClocks,
	}, {
		Name:     "autoscaler-taint-rules",
		Severity: Info,
		Looks:    "DeviceTaintRules that keep claims from devices, where Cluster Autoscaler runs and Mica adds nodes to no GPUNodeGroup",
		Why:      "Cluster Autoscaler does not read DeviceTaintRules. It counts such a device as free and adds no node for the pod that waits. Mica's controller reads them and adds one.",
		Fix:      "Declare the node groups with GPUs to Mica as GPUNodeGroups, or delete the DeviceTaintRule RULE when its reason is gone.",
		Source:   "kubernetes/autoscaler#7947",
		needs:    []Kind{KindDeployments, KindGroups, KindTaintRules},
		find:     autoscalerTaintRules,
	}, {
		Name:     "autoscaler-new-pods",
		Severity: Warning,
		Looks:    autoscaler.FlagNewPods + " of Cluster Autoscaler's Deployment, where there are GPUBudgets and the API server serves no MutatingAdmissionPolicy",
		Why:      "Before Kubernetes 1.36, the controller annotates pods under a budget only after they were made. Until then, Cluster Autoscaler can add a node that no budget bounds.",
		Fix:      `kubectl --namespace NAMESPACE patch deployment DEPLOYMENT --type=json --patch '[{"op":"add","path":"/spec/template/spec/containers/INDEX/COMMAND/-","value":"` + autoscaler.FlagNewPods + "=" + newPodsWait.String() + `"}]'`,
		Source:   "kubernetes/autoscaler, config/flags/flags.go; docs on budgets, Budgets and Cluster Autoscaler",
		needs:    []Kind{KindDiscovery, KindDeployments, KindGroups, KindBudgets},
		find:     autoscalerNewPods,
	}}
}

// runner is the Deployment of a Cluster Autoscaler, with the container in it.
type runner struct {
	*appsv1.Deployment
	corev1.Container
	// index is the container's.
	index int
}

func (f *Facts) runners() []runner {
	var found []runner
	for i := range f.Deployments {
		d := &f.Deployments[i]
		for index, c := range d.Spec.Template.Spec.Containers {
			if imageName(c.Image) == "cluster-autoscaler" {
				found = append(found, runner{d, c, index})
			}
		}
	}
	return found
}

// imageName is the last part of an image's name, without registry, tag and digest.
func imageName(image string) string {
	name := image[strings.LastIndex(image, "/")+1:]
	name, _, _ = strings.Cut(name, "@")
	name, _, _ = strings.Cut(name, ":")
	// Registries have it by processor, too.
	return strings.TrimSuffix(strings.TrimSuffix(name, "-amd64"), "-arm64")
}

func (r runner) names() map[string]string {
	// The flags are in one of two lists, and a patch adds only to one that is there.
	list := "command"
	if len(r.Args) > 0 {
		list = "args"
	}
	return map[string]string{
		"NAMESPACE": r.Namespace, "DEPLOYMENT": r.Deployment.Name, "CONTAINER": r.Container.Name, "INDEX": strconv.Itoa(r.index), "COMMAND": list,
	}
}

// paired are the groups that Cluster Autoscaler makes grow.
func (f *Facts) paired() []*v1alpha1.GPUNodeGroup {
	var groups []*v1alpha1.GPUNodeGroup
	for i := range f.Groups {
		if pairing := f.Groups[i].Spec.Pairing; pairing == v1alpha1.PairingPlaceholder || pairing == "" {
			groups = append(groups, &f.Groups[i])
		}
	}
	return groups
}

// grows reports whether Mica adds nodes to any group.
func (f *Facts) grows() bool {
	return slices.ContainsFunc(f.Groups, func(group v1alpha1.GPUNodeGroup) bool { return group.Spec.Pairing != v1alpha1.PairingObserve })
}

var tag = regexp.MustCompile(`:v?(\d+\.\d+(\.\d+)?)`)

// knowsDRA is the version since which DRA is on, without a flag (kubernetes/autoscaler#8863).
var knowsDRA = version.MajorMinor(1, 35)

func autoscalerVersion(f *Facts) []Finding {
	if len(f.paired()) == 0 {
		return nil
	}
	var found []Finding
	for _, r := range f.runners() {
		finding := Finding{Object: "deployment/" + r.Deployment.Name, names: r.names()}
		match := tag.FindStringSubmatch(r.Image[strings.LastIndex(r.Image, "/")+1:])
		switch {
		case match == nil:
			finding.Severity = Info
			finding.Message = fmt.Sprintf("The version of Cluster Autoscaler cannot be told from its image %s: it has to be 1.35 or newer.", r.Image)
		case !version.MustParseGeneric(match[1]).AtLeast(knowsDRA):
			finding.Message = fmt.Sprintf("Cluster Autoscaler is %s, and has to be 1.35 or newer.", match[1])
		default:
			continue
		}
		found = append(found, finding)
	}
	return found
}

// autoscalerTaintRules has one finding for all rules: a cordoned node has one per kind of device.
func autoscalerTaintRules(f *Facts) []Finding {
	runners := f.runners()
	if len(runners) == 0 || f.grows() {
		return nil
	}
	var rules []string
	for _, rule := range f.TaintRules {
		// A rule without a selector selects nothing.
		selector := rule.Spec.DeviceSelector
		if selector != nil && ptr.Deref(selector.Driver, f.Driver) == f.Driver && rule.Spec.Taint.Effect != resourceapi.DeviceTaintEffectNone {
			rules = append(rules, rule.Name)
		}
	}
	if len(rules) == 0 {
		return nil
	}
	slices.Sort(rules)
	keep := rules[0] + " keeps"
	if len(rules) > 1 {
		keep = fmt.Sprintf("%s and %d more keep", rules[0], len(rules)-1)
	}
	return []Finding{{
		Object:  "deployment/" + runners[0].Deployment.Name,
		Message: fmt.Sprintf("Cluster Autoscaler counts devices as free although DeviceTaintRule %s claims from them.", keep),
		names:   map[string]string{"RULE": rules[0]},
	}}
}

// defaultWait is that of both flags.
const defaultWait = 15 * time.Minute

func autoscalerClocks(f *Facts) []Finding {
	groups, runners := f.paired(), f.runners()
	var found []Finding
	var longest time.Duration
	for _, group := range groups {
		longest = max(longest, group.ProvisionTimeout())
	}
	outlasted := false
	for _, group := range groups {
		c := meta.FindStatusCondition(group.Status.Conditions, v1alpha1.ConditionOutlastsAutoscaler)
		if c == nil || c.Status != metav1.ConditionTrue {
			continue
		}
		outlasted = true
		if len(runners) == 0 {
			found = append(found, Finding{
				Object: "gpunodegroup/" + group.Name, Message: c.Reason + ": " + c.Message,
				Fix: fmt.Sprintf("Set %s and %s of Cluster Autoscaler to %s.", autoscaler.FlagProvision, autoscaler.FlagStartup, short(longest+margin)),
			})
		}
	}
	if len(groups) == 0 {
		return nil
	}
	for _, r := range runners {
		for _, flag := range []string{autoscaler.FlagProvision, autoscaler.FlagStartup} {
			if wait := r.duration(flag, defaultWait); wait < longest {
				found = append(found, r.short(flag, wait, longest, outlasted))
			}
		}
	}
	return found
}

// margin is by how much the flags should be longer than the time that a node may take.
const margin = 5 * time.Minute

// short says that a flag is. Nodes whose image has the driver take a few minutes, and need nothing.
func (r runner) short(flag string, wait, longest time.Duration, outlasted bool) Finding {
	finding := Finding{
		Severity: Info,
		Object:   "deployment/" + r.Deployment.Name,
		Message: fmt.Sprintf("%s of Cluster Autoscaler is %s, and a node may take %s by its GPUNodeGroup's provisionTimeout. That matters if nodes take longer than 10 minutes.",
			flag, short(wait), short(longest)),
		names: r.names(),
	}
	if outlasted {
		finding.Severity = Warning
		finding.Message = fmt.Sprintf("%s of Cluster Autoscaler is %s, and a node has taken longer than Cluster Autoscaler waits. It may take %s by its GPUNodeGroup's provisionTimeout.",
			flag, short(wait), short(longest))
	}
	finding.names["FLAG"], finding.names["DURATION"] = flag, short(longest+margin)
	return finding
}

// short is a duration as people write it.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// newPodsWait is enough for the controller to annotate some thousand pods that are made at once.
const newPodsWait = 30 * time.Second

func autoscalerNewPods(f *Facts) []Finding {
	if len(f.Budgets) == 0 || !f.grows() || f.Served["admissionregistration.k8s.io/v1 mutatingadmissionpolicies"] {
		return nil
	}
	var found []Finding
	for _, r := range f.runners() {
		if wait := r.duration(autoscaler.FlagNewPods, 0); wait < newPodsWait {
			found = append(found, Finding{
				Object: "deployment/" + r.Deployment.Name,
				Message: fmt.Sprintf("%s of Cluster Autoscaler is %s, and has to be %s or longer for GPUBudgets: Kubernetes %s serves no MutatingAdmissionPolicy.",
					autoscaler.FlagNewPods, short(wait), newPodsWait, f.Version),
				names: r.names(),
			})
		}
	}
	return found
}

// duration is that of a flag, and the last one counts.
func (r runner) duration(flag string, byDefault time.Duration) time.Duration {
	wait := byDefault
	arguments := slices.Concat(r.Command, r.Args)
	for i, argument := range arguments {
		// Go's flags have one dash or two, and the value in the same argument or in the next.
		name, value, inline := strings.Cut("--"+strings.TrimLeft(argument, "-"), "=")
		if name != flag {
			continue
		}
		if !inline && i+1 < len(arguments) {
			value = arguments[i+1]
		}
		if d, err := time.ParseDuration(value); err == nil {
			wait = d
		}
	}
	return wait
}
