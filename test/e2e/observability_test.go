//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

const observabilityDirectory = "../../deployments/observability"

// TestAlertsFireForWhatTheyAreFor has Prometheus' own tool play the situations of files, also those of documented
// queries.
func TestAlertsFireForWhatTheyAreFor(t *testing.T) {
	t.Parallel()
	command := exec.CommandContext(t.Context(), os.Getenv("MICA_PROMTOOL"), "test", "rules", "alerts_test.yaml", "queries_test.yaml")
	command.Dir = observabilityDirectory
	output, err := command.CombinedOutput()
	must(t, err, "run promtool (MICA_PROMTOOL): %s", output)
}

// mayBeEmpty are parts of queries that find nothing while all is well, each with the reason.
var mayBeEmpty = map[string]string{
	"mica_scaleout_verdicts":                                       "there are series only while pods wait",
	"mica_scaleout_template_errors":                                "there are series only of groups with an error",
	"mica_scaleout_oldest_pending_pod_timestamp_seconds":           "there are series only of pods that wait",
	"mica_scaleout_stuck_nodes":                                    "there are series only of nodes that are stuck",
	`code!~"OK|Canceled"`:                                          "there are series only of errors that were answered",
	`mica_journal_oldest_record_timestamp_seconds{state="intent"}`: "there are series only while a GPU is changed",
	"mica_device_taints":                                           "there are series only of devices with a taint",
	`health!~"ok|unknown"`:                                         "there are series only of GPUs with a fault",
	`health=~"degraded|drain|dead"`:                                "likewise",
	"mica_gpu_xid_errors_total":                                    "there are series only of errors that there were",
}

// testObservability has a Prometheus of its own read Mica, KEDA and vLLM as PodMonitors make it, with the
// chart's alerts, and asks it all that dashboards and alerts ask. Queries that need something to have
// happened get it from here, so that the test passes alone.
func testObservability(t *testing.T) {
	t.Parallel()
	held, sim := newPartitionScenario(t, 2)
	held.createTemplate("one", held.claimFor(1))
	held.createTemplate("part", held.partitionsFor(1))
	replicas := &scaleOut{scenario: held}
	sized := replicas.newScaled("holder", replicas.ending(held.podFromTemplate("", "one")))
	sized.startWith(1)
	holder := sized.onlyPod()
	sim.use(held.expectOwnDevices(holder)[0], 5)
	held.createPod(held.podFromTemplate("partition", "part"))
	s := newScaleOut(t, "keda-seen")
	s.createHeadroom("e2e-seen", fields{"deviceClassName": s.driver, "devices": int64(0), "nodeGroups": []any{"keda-seen"}})
	d := s.newScaled("seen", s.ending(s.plainPod("")))
	d.waiting(0)
	d.scaledBy(5, d.byWaiting())
	held.expectOwnDevices("partition")

	p := s.startPrometheus()
	p.expectRules()
	p.expectSeries(slices.Concat(p.askedByDashboards(), p.selectedByAlerts()))
}

// prometheus is one in a pod of the test.
type prometheus struct{ *scaleOut }

const prometheusPod = "prometheus"

func (s *scaleOut) startPrometheus() prometheus {
	s.Helper()
	config := map[string]string{"prometheus.yml": s.prometheusConfig()}
	alerts, err := filepath.Glob(filepath.Join(chartDirectory, "alerts", "*.yaml"))
	must(s, err, "list the alerts")
	for _, path := range alerts {
		content, err := os.ReadFile(path)
		must(s, err, "read the alerts")
		config[filepath.Base(path)] = string(content)
	}
	_, err = s.client.CoreV1().ConfigMaps(s.namespace).Create(s.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: prometheusPod}, Data: config,
	}, metav1.CreateOptions{})
	must(s, err, "create the configuration of Prometheus")
	pod := s.ending(s.plainPod(prometheusPod))
	pod.Spec.Containers[0] = corev1.Container{
		Name: prometheusPod, Image: "mica.local/keda:dev", ImagePullPolicy: corev1.PullNever,
		Command:      []string{"/usr/bin/prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/data"},
		VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/prometheus"}, {Name: "data", MountPath: "/data"}},
	}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: prometheusPod}}}},
		{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To(int64(0))}
	s.createPod(pod)
	s.waitRunning(prometheusPod)
	return prometheus{s}
}

// prometheusConfig scrapes each second what runs now, with the labels that the Operator and the chart's
// PodMonitors give.
func (s *scaleOut) prometheusConfig() string {
	s.Helper()
	type job struct {
		name, namespace, selector string
		port                      int
		labels                    map[string]string
	}
	var scrapes []any
	for _, j := range []job{
		{"mica-kubelet-plugin", s.plugin.namespace, pluginSelector, 8080, map[string]string{"node": s.node}},
		{"mica-controller", s.plugin.namespace, controllerSelector, 8080, nil},
		{"keda-operator", kedaNamespace, "app=keda-operator", 8080, nil},
		{"vllm", kedaNamespace, "app=vllmsim", 8000, nil},
	} {
		pods, err := s.client.CoreV1().Pods(j.namespace).List(s.Context(), metav1.ListOptions{LabelSelector: j.selector})
		must(s, err, "list the pods of %s", j.name)
		var targets []any
		for _, pod := range pods.Items {
			if s.node != pod.Spec.NodeName || pod.Status.PodIP == "" {
				continue
			}
			labels := fields{"namespace": pod.Namespace, "pod": pod.Name}
			for name, value := range j.labels {
				labels[name] = value
			}
			targets = append(targets, fields{"targets": []any{fmt.Sprintf("%s:%d", pod.Status.PodIP, j.port)}, "labels": labels})
		}
		if len(targets) == 0 {
			s.Fatalf("there is no pod of %s", j.name)
		}
		scrapes = append(scrapes, fields{"job_name": j.name, "honor_labels": true, "static_configs": targets})
	}
	config, err := yaml.Marshal(fields{
		"global":         fields{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
		"rule_files":     []any{"/etc/prometheus/*.yaml"},
		"scrape_configs": scrapes,
	})
	must(s, err, "write the configuration of Prometheus")
	return string(config)
}

// get asks the HTTP API through the API server.
func (p prometheus) get(path string) *rest.Request {
	return p.client.CoreV1().RESTClient().Get().Namespace(p.namespace).Resource("pods").
		Name(prometheusPod + ":9090").SubResource("proxy").Suffix(path)
}

// ask reads the data of an answer of the HTTP API into one.
func (p prometheus) ask(ctx context.Context, path, query string, into any) error {
	content, err := p.get("api/v1/"+path).Param("query", query).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("%w: %s", err, content)
	}
	answer := struct{ Data any }{into}
	return json.Unmarshal(content, &answer)
}

// expectRules waits until each alert of the chart was evaluated without an error.
func (p prometheus) expectRules() {
	p.Helper()
	eventually(p, retryTimeout, "Prometheus evaluates every alert", func(ctx context.Context) error {
		var loaded struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
		if err := p.ask(ctx, "rules", "", &loaded); err != nil {
			return err
		}
		count := 0
		for _, group := range loaded.Groups {
			for _, rule := range group.Rules {
				count++
				if rule.LastError != "" {
					return fmt.Errorf("%w: alert %s: %s", errNever, rule.Name, rule.LastError)
				}
				if rule.Health != "ok" {
					return fmt.Errorf("alert %s is %s", rule.Name, rule.Health)
				}
			}
		}
		if want := len(alertExpressions(p)); count != want {
			return fmt.Errorf("%w: it has %d rules, and the chart %d", errNever, count, want)
		}
		return nil
	})
}

// askedByDashboards are the queries of panels and variables, with what Grafana puts in for its own names.
func (p prometheus) askedByDashboards() []string {
	p.Helper()
	grafana := strings.NewReplacer("$__rate_interval", "1m", "$__interval", "1m", "$__range", "1h", "$node", ".*", "$group", ".*", "$model", ".*")
	paths, err := filepath.Glob(filepath.Join(chartDirectory, "dashboards", "*.json"))
	must(p, err, "list the dashboards")
	var queries []string
	for _, path := range paths {
		content, err := os.ReadFile(path)
		must(p, err, "read a dashboard")
		var board struct {
			Panels     []struct{ Targets []struct{ Expr string } }
			Templating struct{ List []struct{ Definition string } }
		}
		must(p, json.Unmarshal(content, &board), "decode %s", path)
		for _, panel := range board.Panels {
			for _, target := range panel.Targets {
				queries = append(queries, grafana.Replace(target.Expr))
			}
		}
		for _, variable := range board.Templating.List {
			if of, found := strings.CutPrefix(variable.Definition, "label_values("); found {
				metric, label, _ := strings.Cut(strings.TrimSuffix(of, ")"), ", ")
				queries = append(queries, fmt.Sprintf("count by (%s) (%s) > 0", label, metric))
			}
		}
	}
	if len(queries) < 30 {
		p.Fatalf("found %d queries in %q, too few to be the dashboards'", len(queries), paths)
	}
	return queries
}

// selectedByAlerts are the series that the alerts look at: an alert itself finds nothing while all is well.
func (p prometheus) selectedByAlerts() []string {
	p.Helper()
	var selectors []string
	for _, expression := range alertExpressions(p) {
		var tree any
		must(p, p.ask(p.Context(), "parse_query", expression, &tree), "parse %s", expression)
		found := selectorsOf(tree)
		if len(found) == 0 {
			p.Errorf("%s selects nothing", expression)
		}
		selectors = append(selectors, found...)
	}
	return selectors
}

// selectorsOf are those of a parsed query.
func selectorsOf(tree any) []string {
	var all []string
	switch tree := tree.(type) {
	case []any:
		for _, child := range tree {
			all = append(all, selectorsOf(child)...)
		}
	case map[string]any:
		if matchers, is := tree["matchers"].([]any); is {
			var conditions []string
			for _, matcher := range matchers {
				m, _ := matcher.(map[string]any)
				conditions = append(conditions, fmt.Sprintf("%v%v%q", m["name"], m["type"], m["value"]))
			}
			all = append(all, fmt.Sprintf("%v{%s}", tree["name"], strings.Join(slices.DeleteFunc(conditions, func(c string) bool { return strings.HasPrefix(c, "__name__") }), ",")))
		}
		for _, child := range tree {
			all = append(all, selectorsOf(child)...)
		}
	}
	return all
}

func alertExpressions(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(chartDirectory, "alerts", "*.yaml"))
	must(t, err, "list the alerts")
	var expressions []string
	for _, path := range paths {
		content, err := os.ReadFile(path)
		must(t, err, "read the alerts")
		var file struct {
			Groups []struct{ Rules []struct{ Expr string } }
		}
		must(t, yaml.Unmarshal(content, &file), "decode %s", path)
		for _, group := range file.Groups {
			for _, rule := range group.Rules {
				expressions = append(expressions, rule.Expr)
			}
		}
	}
	return expressions
}

// expectSeries waits until each query has found something, at once or at different times.
func (p prometheus) expectSeries(queries []string) {
	p.Helper()
	open := map[string]string{}
	for _, query := range queries {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(mayBeEmpty)), func(part string) bool { return strings.Contains(query, part) }) {
			open[query] = "it finds nothing"
		}
	}
	eventually(p, retryTimeout, "every query finds something", func(ctx context.Context) error {
		for query := range open {
			var found struct{ Result []any }
			if err := p.ask(ctx, "query", query, &found); err != nil {
				open[query] = err.Error()
			} else if len(found.Result) > 0 {
				delete(open, query)
			}
		}
		var failures []error
		for query, why := range open {
			failures = append(failures, fmt.Errorf("%s: %s", query, why))
		}
		return errors.Join(failures...)
	})
}
