package helm_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// monitored is what counts here of an object that helm renders.
type monitored struct {
	Kind     string
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Spec struct {
		Selector  any
		Ports     []struct{ Name, TargetPort string }
		Endpoints []struct {
			Port, Interval string
			HonorLabels    bool
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				Containers []struct {
					Ports []struct{ Name string }
				}
			}
		}
	}
}

func includes(labels map[string]string, wanted any) bool {
	selector, is := wanted.(map[string]any)
	if nested, matches := selector["matchLabels"].(map[string]any); matches {
		selector = nested
	}
	for name, value := range selector {
		if labels[name] != value {
			return false
		}
	}
	return is && len(selector) > 0
}

// A ServiceMonitor selects Services by their labels, and a Service pods: each selects one here.
func TestServiceMonitorsReachThePlugin(t *testing.T) {
	reached := map[string]bool{}
	var objects []monitored
	for text := range strings.SplitSeq(render(t, "--namespace", "mica", "--set", "serviceMonitor.enabled=true,controller.enabled=true,mps.enabled=true"), "\n---\n") {
		var object monitored
		if err := yaml.Unmarshal([]byte(text), &object); err == nil {
			objects = append(objects, object)
		}
	}
	for _, monitor := range objects {
		if monitor.Kind != "ServiceMonitor" {
			continue
		}
		if endpoint := monitor.Spec.Endpoints[0]; endpoint.Interval != "15s" {
			t.Errorf("%s reads every %s", monitor.Metadata.Name, endpoint.Interval)
		}
		for _, service := range objects {
			if service.Kind != "Service" || !includes(service.Metadata.Labels, monitor.Spec.Selector) || service.Spec.Ports[0].Name != monitor.Spec.Endpoints[0].Port {
				continue
			}
			for _, workload := range objects {
				if !includes(workload.Spec.Template.Metadata.Labels, service.Spec.Selector) {
					continue
				}
				for _, port := range workload.Spec.Template.Spec.Containers[0].Ports {
					if port.Name == service.Spec.Ports[0].TargetPort {
						reached[fmt.Sprintf("%s honorLabels=%v", workload.Kind, monitor.Spec.Endpoints[0].HonorLabels)] = true
					}
				}
			}
		}
	}
	if got := slices.Sorted(maps.Keys(reached)); !slices.Equal(got, []string{"DaemonSet honorLabels=true", "Deployment honorLabels=false"}) {
		t.Errorf("the ServiceMonitors reach %q", got)
	}
}
