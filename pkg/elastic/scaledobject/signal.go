package scaledobject

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// Serving selects the workload's series in Prometheus.
type Serving struct {
	// Engine is one of Engines.
	Engine string
	// Underscores reports whether Prometheus has underscores in place of the engine's colons, which some
	// collectors replace.
	Underscores bool
	// Model is the name under which the model is served; may be empty.
	Model string
	// Matchers are PromQL, such as pod=~"llm-.*".
	Matchers []string
	// Namespace is the value of the label namespace; empty selects all namespaces.
	Namespace string
	// AnyPod does not select by the label pod.
	AnyPod bool
}

// podNames are regular expressions for the names of a workload's pods, with %s for the workload's name. A
// hash has no hyphen, so that llm does not select the pods of llm-green.
var podNames = map[string]string{
	workload.KindDeployment:  "%s-[a-z0-9]+-[a-z0-9]{5}",
	workload.KindReplicaSet:  "%s-[a-z0-9]{5}",
	workload.KindStatefulSet: "%s-[0-9]+",
}

// longestName leaves room for a hash in the 58 characters that a generated name keeps (apiserver,
// pkg/storage/names). A longer name may cut the hash.
const longestName = 58 - len("-0123456789-")

// pods is the matcher for the pods of a workload.
func pods(of workload.Ref) string {
	names, known := podNames[of.Kind]
	if !known || of.Foreign() || len(of.Name) > longestName {
		names = "%s-.*"
	}
	return "pod=~" + strconv.Quote(fmt.Sprintf(names, regexp.QuoteMeta(of.Name)))
}

var matcher = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)("([^"\\]|\\.)*")$`)

// series select the workload's metrics.
type series struct {
	engine
	underscores bool
	matchers    []string
}

// series fails if it would select the metrics of all workloads.
func (s Serving) series(target workload.Ref) (series, error) {
	e, known := engines[s.Engine]
	if !known {
		return series{}, fmt.Errorf("unknown engine %q: use one of %s, or write a trigger of KEDA with a query", s.Engine, strings.Join(Engines(), ", "))
	}
	of := series{engine: e, underscores: s.Underscores}
	if s.Namespace != "" {
		of.matchers = append(of.matchers, "namespace="+strconv.Quote(s.Namespace))
	}
	named := 0 // matchers that distinguish the workload from others in the namespace
	if !s.AnyPod && !e.ofFrontend {
		of.matchers = append(of.matchers, pods(target))
		named++
	}
	switch {
	case s.Model == "":
	case e.modelLabel == "":
		return series{}, fmt.Errorf("the metrics of %s do not name the model %s: leave it out, and give a label that only the workload's pods have, such as pod=~\"llm-.*\"", s.Engine, s.Model)
	default:
		of.matchers = append(of.matchers, e.modelLabel+"="+strconv.Quote(s.Model))
		named++
	}
	for _, m := range s.Matchers {
		parts := matcher.FindStringSubmatch(m)
		if parts == nil {
			return series{}, fmt.Errorf(`%q is no matcher of series: write it as PromQL does, such as pod=~"llm-.*"`, m)
		}
		if _, err := strconv.Unquote(parts[2]); err != nil {
			return series{}, fmt.Errorf("the value in the matcher %s is not valid: write a backslash as two", m)
		}
		of.matchers = append(of.matchers, m)
		named++
	}
	if named == 0 {
		return series{}, errors.New("nothing selects the workload's metrics, so it would be scaled by the load of all: name the model, or a label that only its pods have")
	}
	return of, nil
}

// of selects a metric's series by all its names, each with the suffix and in the form, such as rate(%s[5m]).
func (s series) of(m metric, suffix, form string) string {
	all := make([]string, len(m.names))
	for i, name := range m.names {
		name, own, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		if s.underscores {
			name = strings.ReplaceAll(name, ":", "_")
		}
		matchers := s.matchers
		if own != "" {
			matchers = append([]string{own}, matchers...)
		}
		all[i] = strings.ReplaceAll(form, "%s", name+suffix+"{"+strings.Join(matchers, ",")+"}")
	}
	return strings.Join(all, " or ")
}

// query is PromQL for a signal.
type query struct {
	promQL string
	// average reports whether the result is a mean over the replicas, not a sum.
	average bool
}

// query returns the query for a profile's signal, in the profile's unit; false if the engine has no metric
// for it.
func (s series) query(signal string) (query, bool) {
	if m, ok := s.gauges[signal]; ok {
		if signal == profile.KVCache {
			// The server reports a fraction, profiles have percent.
			return query{"100 * avg(" + s.of(m, "", "%s") + ")", true}, true
		}
		return query{"sum(" + s.of(m, "", "%s") + ")", false}, true
	}
	if m, ok := s.histograms[signal]; ok {
		return query{s.quantile(m), true}, true
	}
	if m, ok := s.counters[signal]; ok {
		return query{"sum(" + s.of(m, "", "rate(%s[1m])") + ")", false}, true
	}
	return query{}, false
}

// summedCache is the sum over all replicas, including idle ones.
func (s series) summedCache() query {
	return query{"100 * sum(" + s.of(s.gauges[profile.KVCache], "", "%s") + ")", false}
}

// quantile is the 95th percentile of a histogram. Without requests that is NaN, which the comparison drops:
// an idle server counts as 0. A server that does not exist has no value.
func (s series) quantile(m metric) string {
	scaled := ""
	if m.scale != 0 {
		scaled = number(m.scale) + " * "
	}
	return scaled + "histogram_quantile(0.95, sum by (le) (" + s.of(m, "_bucket", "rate(%s[5m])") + ")) >= 0 or 0 * sum(" + s.of(m, "_count", "%s") + ")"
}
