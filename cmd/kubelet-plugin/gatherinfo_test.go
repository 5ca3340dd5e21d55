package main

import (
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// A report of a process that has secrets everywhere has none of them, and all sections, also on a
// machine that has nothing.
func TestGatherinfoHasNoSecret(t *testing.T) {
	const secret = "hunter2"
	for _, variable := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "AWS_SECRET_ACCESS_KEY", "TOKEN", "HTTP_PROXY"} {
		t.Setenv(variable, "Authorization=Bearer "+secret)
	}
	t.Setenv("IMAGE_PULL_SECRETS", secret)
	kubeconfig := write(t, "kubeconfig", `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
  clusters: [{name: a, cluster: {server: "https://user:`+secret+`@127.0.0.1:1"}}], users: [{name: a, user: {token: `+secret+`}}]}`)
	broken := write(t, "broken", secret)
	missing := filepath.Join(t.TempDir(), "missing")
	for _, config := range []string{kubeconfig, broken} {
		text, err := execute(t, "gatherinfo", "--node-name=node-z", "--kubeconfig="+config, "--container-driver-root="+missing, "--cdi-root="+missing,
			"--kubelet-plugins-directory-path="+missing, "--metrics-port=1", "--mps-root=/x?password="+secret)
		must(t, err)
		if strings.Contains(text, secret) {
			t.Errorf("it shows the secret:\n%s", text)
		}
		var sections map[string]any
		if err := yaml.UnmarshalStrict([]byte(text), &sections); err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		for _, name := range []string{"versions", "node", "flags", "driverRoot", "selftest", "nvml", "health", "published", "claims", "cdi", "mps", "metrics", "mounts", "deviceNodes"} {
			if sections[name] == nil {
				t.Errorf("there is no section %s:\n%s", name, text)
			}
		}
		for _, name := range []string{"node", "nvml", "published", "claims", "cdi", "metrics"} {
			if section, failed := sections[name].(map[string]any); !failed || section["error"] == nil {
				t.Errorf("section %s has no error: %v", name, sections[name])
			}
		}
		if flags := sections["flags"].(map[string]any); flags["kubeconfig"] != config {
			t.Errorf("the flags are %v", flags)
		}
	}
}
