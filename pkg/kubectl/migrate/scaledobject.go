package migrate

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	yamlnode "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// trigger has the fields of one of KEDA's (keda.sh/v1alpha1).
type trigger struct {
	Type              string            `json:"type"`
	Name              string            `json:"name"`
	UseCachedMetrics  bool              `json:"useCachedMetrics"`
	Metadata          map[string]string `json:"metadata"`
	MetricType        string            `json:"metricType"`
	AuthenticationRef *struct {
		Name string `json:"name"`
		Kind string `json:"kind"`
	} `json:"authenticationRef"`
}

// dcgm is how DCGM's exporter names its series.
var dcgm = regexp.MustCompile(`\bDCGM_FI_\w+`)

// series says what a metric of DCGM is with Mica.
type series struct {
	metric string
	// scale makes a percentage of a threshold.
	scale float64
}

// utilization are the series that tell how busy a GPU is: in percent, or as a part of 1
// (DCGM's field identifiers).
var utilization = map[string]series{
	"DCGM_FI_DEV_GPU_UTIL":          {"gpuUtilization", 1},
	"DCGM_FI_PROF_GR_ENGINE_ACTIVE": {"gpuUtilization", 100},
	"DCGM_FI_PROF_SM_ACTIVE":        {"gpuUtilization", 100},
}

// scaledObject gives triggers by DCGM's series a trigger of Mica's controller in their place.
func (m *migration) scaledObject(d document) (bool, error) {
	triggers := get(d.node, "spec", "triggers")
	if triggers == nil || !dcgm.Match(d.text) {
		return false, nil
	}
	expand(d.node)
	triggers = get(d.node, "spec", "triggers")
	target, err := targetOf(d)
	changed := false
	for i, node := range triggers.Content {
		t, decodeErr := decodeTrigger(node)
		if decodeErr != nil {
			return false, bad(d.source, d.line, "%s cannot be read: spec.triggers[%d]: %w", d.name(), i, shortened(decodeErr))
		}
		if t.Type != "prometheus" || !dcgm.MatchString(t.Metadata["query"]) {
			continue
		}
		field := fmt.Sprintf("spec.triggers[%d]", i)
		s, threshold, why := t.reads()
		if err != nil {
			why = err.Error()
		}
		if why != "" {
			m.find(d, Blocked, field, why, "scale by a signal of load: kubectl gpu scaledobject "+strings.ToLower(cmp.Or(target, "KIND/NAME"))+" --profile PROFILE")
			continue
		}
		m.replaceTrigger(node, t, s, threshold, target)
		changed = true
		m.find(d, Moved, field, fmt.Sprintf("Mica's controller tells %s of exactly the devices that the pods of %s hold, and asks for a replica above %s percent", s.metric, target, threshold), "")
		m.tellTrigger(d, field, t)
	}
	return changed, nil
}

func decodeTrigger(node *yamlnode.Node) (trigger, error) {
	var t trigger
	text, err := encode(node)
	if err == nil {
		err = decodeStrictly(text, &t)
	}
	return t, err
}

// targetOf is what is scaled: Kind/name, with the group where the kind is none of apps/v1.
func targetOf(d document) (string, error) {
	var object struct {
		Spec struct {
			Target struct {
				APIVersion string `json:"apiVersion"`
				Kind       string `json:"kind"`
				Name       string `json:"name"`
			} `json:"scaleTargetRef"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(d.text, &object); err != nil {
		return "", err
	}
	target := object.Spec.Target
	kind := cmp.Or(target.Kind, "Deployment") // KEDA's default
	if slices.Contains([]string{"Deployment", "StatefulSet", "ReplicaSet"}, kind) {
		return kind + "/" + target.Name, nil
	}
	group, _, has := strings.Cut(target.APIVersion, "/")
	if !has {
		return kind + "/" + target.Name, fmt.Errorf("it scales a %s, and does not say of which group: set spec.scaleTargetRef.apiVersion", kind)
	}
	return kind + "." + group + "/" + target.Name, nil
}

// reads says what a trigger's query stands for, and the threshold in percent; or why it cannot be
// told.
func (t trigger) reads() (s series, threshold, why string) {
	names := dcgm.FindAllString(t.Metadata["query"], -1)
	for _, name := range names {
		of := utilization[name]
		if of.metric == "" {
			return s, "", "Mica has no metric for " + name
		}
		if s.metric != "" && of != s {
			return s, "", "the query combines " + strings.Join(names, " and ") + ", and a trigger of Mica has one metric"
		}
		s = of
	}
	if other := regexp.MustCompile(`\b\w+:\w+|\b[a-z]+_[a-z_]+\{`).FindString(t.Metadata["query"]); other != "" {
		return s, "", "the query combines DCGM's series with " + strings.TrimSuffix(other, "{")
	}
	value, err := strconv.ParseFloat(t.Metadata["threshold"], 64)
	if err != nil || value <= 0 {
		return s, "", fmt.Sprintf("its threshold %q is no number above 0", t.Metadata["threshold"])
	}
	return s, strconv.FormatFloat(value*s.scale, 'f', -1, 64), ""
}

// replaceTrigger keeps the name, and comments around the trigger.
func (m *migration) replaceTrigger(node *yamlnode.Node, t trigger, s series, threshold, target string) {
	metadata := map[string]string{
		"scalerAddress": m.Scaler,
		"metric":        s.metric,
		"target":        target,
		"threshold":     threshold,
	}
	if activation, err := strconv.ParseFloat(t.Metadata["activationThreshold"], 64); err == nil && activation > 0 {
		metadata["activationThreshold"] = strconv.FormatFloat(activation*s.scale, 'f', -1, 64)
	}
	set(node, "type", "external-push")
	set(node, "metadata", metadata)
	remove(node, "authenticationRef")
	remove(node, "metricType")
}

// tellTrigger says what may not be what is wanted.
func (m *migration) tellTrigger(d document, field string, t trigger) {
	m.find(d, Look, field, "a GPU is utilized while anything runs on it, so utilization alone asks for more and more replicas of a model server",
		"for one, scale by its queue: kubectl gpu scaledobject with --profile realtime")
	if t.AuthenticationRef != nil {
		m.find(d, Look, field+".authenticationRef", "it was for Prometheus, which KEDA does not ask any more", "if the controller has TLS, name a TriggerAuthentication for it: see the page on KEDA")
	}
	if t.MetricType == "Value" {
		m.find(d, Look, field+".metricType", "Mica tells a total over the replicas, which AverageValue divides by them", "")
	}
	if get(d.node, "spec", "advanced", "scalingModifiers") != nil {
		m.find(d, Look, "spec.advanced.scalingModifiers", "the formula reads a total over the replicas where it read the query", "divide by the number of replicas in it, or leave it out")
	}
}

// autoscaler tells of an autoscaler by DCGM's series, which a ScaledObject would replace.
func (m *migration) autoscaler(d document) {
	if !strings.Contains(strings.ToUpper(string(d.text)), "DCGM_") {
		return
	}
	ref := get(d.node, "spec", "scaleTargetRef")
	target := "KIND/NAME"
	if kind, name := get(ref, "kind"), get(ref, "name"); kind != nil && name != nil {
		target = strings.ToLower(kind.Value) + "/" + name.Value
	}
	m.find(d, Blocked, "spec.metrics", "it scales by DCGM's series through an adapter of metrics, and Mica tells them to KEDA",
		"replace it by a ScaledObject: kubectl gpu scaledobject "+target+" --profile batch")
}
