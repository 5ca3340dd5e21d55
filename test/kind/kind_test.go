// Package kind has the configuration of the cluster that hack/kind.sh creates. No Docker engine is
// needed to test that kind will take it.
package kind

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
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

func TestAnotherNodeImage(t *testing.T) {
	t.Setenv("KIND_NODE_IMAGE", "mica.local/node:dev")
	out, errs, err := script(t, "config", "1.37")
	if err != nil || !strings.Contains(out, "image: mica.local/node:dev\n") {
		t.Errorf("%v, %s, want the image that KIND_NODE_IMAGE names in\n%s", err, errs, out)
	}
}

func TestSkippedTestsExist(t *testing.T) {
	text, err := os.ReadFile("skipped.txt")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../e2e/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(content)
	}
	for line := range strings.Lines(string(text)) {
		test, _, _ := strings.Cut(strings.TrimSpace(line), "/")
		if !strings.HasPrefix(line, "#") && !strings.Contains(source.String(), "\nfunc "+test+"(t *testing.T) {") {
			t.Errorf("skipped.txt names %q, and test/e2e has no such test", test)
		}
	}
}

// TestGatesThatAreOff reads metrics as an API server writes them: component-base/metrics/prometheus/feature of Kubernetes.
func TestGatesThatAreOff(t *testing.T) {
	command := exec.CommandContext(t.Context(), "../../hack/kind.sh", "off")
	command.Stdin = strings.NewReader(`# TYPE kubernetes_feature_enabled gauge
kubernetes_feature_enabled{name="DRAAdminAccess",stage="BETA"} 0
kubernetes_feature_enabled{name="DRAConsumableCapacity",stage="ALPHA"} 0
kubernetes_feature_enabled{name="DRADeviceTaints",stage="BETA"} 1
kubernetes_feature_enabled{name="DRAPartitionableDevices",stage="ALPHA"} 0
`)
	out, err := command.CombinedOutput()
	if want := "DRAConsumableCapacity\nDRAPartitionableDevices\n"; err != nil || string(out) != want {
		t.Errorf("off are %q, %v, want %q", out, err, want)
	}
}

// TestAnEngineWithoutRights has Docker say what Docker 20.10 says on a machine without CAP_SYS_RESOURCE.
func TestAnEngineWithoutRights(t *testing.T) {
	bin := t.TempDir()
	const docker = `#!/bin/sh
[ "$1" != run ] && exit
echo 'docker: Error response from daemon: failed to create shim task: unable to apply caps: operation not permitted' >&2
echo 'See docker run --help.' >&2
exit 126
`
	if err := os.WriteFile(filepath.Join(bin, "docker"), []byte(docker), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	_, errs, err := script(t, "up")
	if err == nil || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "no right to run privileged containers") || !strings.Contains(errs, "unable to apply caps") {
		t.Errorf("says %q, %v, want one sentence with Docker's own", errs, err)
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
			if _, _, err := script(t, "info"); name == "no cluster" && err == nil {
				t.Skip("this checkout has a cluster")
			}
			t.Setenv("DOCKER_HOST", "unix:///nonexistent")
			_, errs, err := script(t, tc.arguments...)
			if err == nil || !strings.Contains(errs, tc.says) {
				t.Errorf("says %q, %v, want %q", errs, err, tc.says)
			}
		})
	}
}
