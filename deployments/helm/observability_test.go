package helm_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestDashboardsAreInstalledAsTheyAre(t *testing.T) {
	rendered := render(t, "--namespace", "mica", "--set", "grafanaDashboards.enabled=true", "--show-only", "templates/dashboards.yaml")
	installed := map[string]string{}
	for _, document := range strings.Split(rendered, "\n---\n") {
		var object struct {
			Metadata struct {
				Labels map[string]string `json:"labels"`
			} `json:"metadata"`
			Data map[string]string `json:"data"`
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		if label := object.Metadata.Labels["grafana_dashboard"]; label != "1" {
			t.Errorf("a ConfigMap has the label grafana_dashboard %q, want 1", label)
		}
		for name, content := range object.Data {
			installed[name] = content
		}
	}
	paths, err := filepath.Glob("mica/dashboards/*.json")
	if err != nil || len(paths) != len(installed) {
		t.Errorf("%d dashboards are installed of %q: %v", len(installed), paths, err)
	}
	for _, path := range paths {
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := installed["mica-"+filepath.Base(path)]; strings.TrimSpace(got) != strings.TrimSpace(string(want)) {
			t.Errorf("%s is installed as\n%s", path, got)
		}
	}
}

// One of the alerts is about the absence of the controller.
func TestAlertsAreAboutWhatIsInstalled(t *testing.T) {
	for _, test := range []struct {
		values string
		want   map[string]bool
	}{
		{"controller.enabled=true", map[string]bool{"mica-plugin": true, "mica-controller": true, "mica-keda": false}},
		{"controller.keda.enabled=true,controller.keda.tls.requireClientCertificate=false", map[string]bool{"mica-plugin": true, "mica-controller": true, "mica-keda": true}},
		{"controller.enabled=false", map[string]bool{"mica-plugin": true, "mica-controller": false, "mica-keda": false}},
	} {
		rendered := render(t, "--namespace", "mica", "--set", "prometheusRule.enabled=true,"+test.values, "--show-only", "templates/prometheusrule.yaml")
		for group, want := range test.want {
			if got := strings.Contains(rendered, "- name: "+group+"\n"); got != want {
				t.Errorf("with %s the group %s is there: %t, want %t", test.values, group, got, want)
			}
		}
	}
}

// The alerts on up look for these names.
func TestMonitorsNameTheirJobs(t *testing.T) {
	for _, monitors := range []string{"podMonitor", "serviceMonitor"} {
		rendered := render(t, "--namespace", "mica", "--set", monitors+".enabled=true")
		for _, job := range []string{"mica-kubelet-plugin", "mica-controller"} {
			if count := strings.Count(rendered, "- targetLabel: job\n          replacement: "+job+"\n"); count != 1 {
				t.Errorf("with %s.enabled the job %s is named %d times, want once", monitors, job, count)
			}
		}
	}
}
