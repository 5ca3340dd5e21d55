// Package kind has the configuration of the cluster that hack/kind.sh creates. No Docker engine is
// needed to test that kind will take it.
package kind

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	"sigs.k8s.io/yaml"
)

// versions are those of images.txt.
func versions(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("images.txt")
	if err != nil {
		t.Fatal(err)
	}
	images := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if version, image, is := strings.Cut(strings.TrimSpace(line), " "); is && !strings.HasPrefix(line, "#") {
			images[version] = image
		}
	}
	if len(images) != 4 {
		t.Fatalf("images.txt has %d versions, want the 4 that Mica runs on", len(images))
	}
	return images
}

func script(t *testing.T, arguments ...string) (string, string, error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "../../hack/kind.sh", arguments...)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	return out.String(), errs.String(), err
}

func TestKindTakesTheConfigurationOfEachVersion(t *testing.T) {
	digest := regexp.MustCompile(`^kindest/node:v(1\.\d+)\.\d+@sha256:[0-9a-f]{64}$`)
	for version, image := range versions(t) {
		t.Run(version, func(t *testing.T) {
			out, errs, err := script(t, "config", version)
			if err != nil {
				t.Fatal(err, errs)
			}
			var cluster v1alpha4.Cluster
			if err := yaml.UnmarshalStrict([]byte(out), &cluster); err != nil {
				t.Fatalf("%v in\n%s", err, out)
			}
			if found := digest.FindStringSubmatch(image); found == nil || found[1] != version {
				t.Errorf("image %s is not of %s, or has no digest", image, version)
			}
			if len(cluster.Nodes) != 1 || cluster.Nodes[0].Image != image {
				t.Errorf("nodes are %+v, want one of image %s", cluster.Nodes, image)
			}
			// Beta, and on, from 1.36 on.
			if older := version < "1.36"; older != cluster.FeatureGates["DRAPartitionableDevices"] {
				t.Errorf("gates of %s are %v", version, cluster.FeatureGates)
			}
			if upper := regexp.MustCompile(`\b(IMAGE|GATES|SIMULATOR)\b`).FindString(out); upper != "" {
				t.Errorf("%s was not filled in", upper)
			}
		})
	}
}

func TestBadInput(t *testing.T) {
	for name, tc := range map[string]struct {
		arguments []string
		says      string
	}{
		"nothing":           {nil, "usage"},
		"a version":         {[]string{"config", "1.20"}, "1.34 to 1.37"},
		"no cluster":        {[]string{"info", "-o", "env"}, "make kind-up"},
		"no Docker engine":  {[]string{"up"}, "make test-e2e"},
		"version before it": {[]string{"up", "1.20"}, "1.34 to 1.37"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("DOCKER_HOST", "unix:///nonexistent")
			_, errs, err := script(t, tc.arguments...)
			if err == nil || !strings.Contains(errs, tc.says) {
				t.Errorf("says %q, %v, want %q", errs, err, tc.says)
			}
		})
	}
}
