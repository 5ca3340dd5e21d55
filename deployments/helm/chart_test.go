// Package helm_test holds the chart to its golden files and to its refusals, with the real
// helm. It never talks to a real cluster: where a template asks one, the test plays it.
package helm_test

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files from what helm renders now")

// helm runs the helm binary that the environment variable HELM names and returns what it
// printed. Its own configuration lies in a directory of the test, so that no repository or
// plugin of the user's has a say.
func helm(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	binary := os.Getenv("HELM")
	if binary == "" {
		t.Fatal("the environment variable HELM does not name a helm binary: run `make test`, which builds one, or set HELM to a helm 4")
	}
	command := exec.Command(binary, args...)
	home := t.TempDir()
	command.Env = append(os.Environ(), "HELM_CONFIG_HOME="+home, "HELM_CACHE_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG="+filepath.Join(home, "none"))
	var out, errors bytes.Buffer
	command.Stdout, command.Stderr = &out, &errors
	err = command.Run()
	return out.String(), errors.String(), err
}

// render renders the chart and fails the test where helm does.
func render(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, err := helm(t, append([]string{"template", "mica", "mica"}, args...)...)
	if err != nil {
		t.Fatalf("helm template %s: %v\n%s", strings.Join(args, " "), err, stderr)
	}
	return stdout
}

func TestLint(t *testing.T) {
	for _, values := range []string{"", "testdata/everything.values.yaml"} {
		args := []string{"lint", "--strict", "mica", "--namespace", "mica"}
		if values != "" {
			args = append(args, "--values", values)
		}
		if stdout, stderr, err := helm(t, args...); err != nil {
			t.Errorf("helm %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
		}
	}
}

func TestRenderedChartEqualsGoldenFiles(t *testing.T) {
	tests := []struct {
		golden string
		args   []string
	}{
		{golden: "defaults", args: []string{"--namespace", "mica"}},
		{golden: "everything", args: []string{"--namespace", "kube-system", "--values", "testdata/everything.values.yaml"}},
	}
	for _, test := range tests {
		t.Run(test.golden, func(t *testing.T) {
			compareGolden(t, filepath.Join("testdata", test.golden+".golden.yaml"), render(t, test.args...))
		})
	}
}

func TestNotesEqualGoldenFiles(t *testing.T) {
	tests := []struct {
		golden string
		args   []string
	}{
		{golden: "defaults", args: []string{"--namespace", "mica"}},
		{golden: "keda", args: []string{"--namespace", "mica", "--set", "controller.keda.enabled=true,controller.keda.tls.requireClientCertificate=false,kubeletPlugin.containers.plugin.metricsPort=-1"}},
		{golden: "everything", args: []string{"--namespace", "kube-system", "--values", "testdata/everything.values.yaml"}},
		{golden: "nvidia", args: []string{"--namespace", "mica", "--values", "testdata/nvidia.values.yaml"}},
	}
	for _, test := range tests {
		t.Run(test.golden, func(t *testing.T) {
			compareGolden(t, filepath.Join("testdata", test.golden+".notes.golden.txt"), notesOf(t, test.args...))
		})
	}
}

// Values of NVIDIA's chart mean what they mean there, where MIG partitions are static unless a gate says otherwise.
func TestMIGCreation(t *testing.T) {
	const never, onDemand = "    mig: {creation: Never}\n", "    mig: {}\n"
	for values, want := range map[string]string{
		"logVerbosity=4":                                                        onDemand,
		"featureGates.LoggingBetaOptions=true":                                  onDemand,
		"featureGates=null":                                                     onDemand,
		"gpuPolicy.migCreation=Never":                                           never,
		"featureGates.DynamicMIG=false":                                         never,
		"featureGates.DynamicMIG=true,gpuResourcesEnabledOverride=true":         onDemand,
		"gpuResourcesEnabledOverride=true":                                      never,
		"featureGates.MPSSupport=true,mps.enabled=true":                         never,
		"featureGates.DynamicMIG=false,gpuPolicy.migCreation=OnDemand":          onDemand,
		"resources.computeDomains.enabled=false,gpuPolicy.migCreation=OnDemand": onDemand,
	} {
		t.Run(values, func(t *testing.T) {
			if rendered := render(t, "--namespace", "mica", "--set", values); !strings.Contains(rendered, want) {
				t.Errorf("the GPUPolicy does not have %q", want)
			}
			explicit := strings.Contains(values, "migCreation")
			if notes := notesOf(t, "--namespace", "mica", "--set", values); strings.Contains(notes, "creates none") != (want == never && !explicit) {
				t.Errorf("the notes say:\n%s", notes)
			}
		})
	}
}

func TestConsumableShares(t *testing.T) {
	for values, want := range map[string]string{
		"consumableShares=null":      "    whole: {}\n",
		"consumableShares=disabled":  "    whole: {}\n",
		"consumableShares=4":         "    whole: {consumableShares: 4}\n",
		"consumableShares=unlimited": "    whole: {consumableShares: unlimited}\n",
	} {
		if rendered := render(t, "--namespace", "mica", "--set", values); !strings.Contains(rendered, want) {
			t.Errorf("%s: the GPUPolicy does not have %q", values, want)
		}
	}
}

// The gate of MPS without MPS is answered when the chart is installed, and not only when a claim is refused.
func TestNotesOfTheGateOfMPS(t *testing.T) {
	const answer = "- featureGates.MPSSupport: Set mps.enabled=true in the chart"
	for values, want := range map[string]bool{
		"featureGates.MPSSupport=true":                  true,
		"featureGates.MPSSupport=false":                 false,
		"featureGates.MPSSupport=true,mps.enabled=true": false,
		"mps.enabled=true":                              false,
	} {
		if notes := notesOf(t, "--namespace", "mica", "--set", values); strings.Contains(notes, answer) != want {
			t.Errorf("%s: want an answer to the gate: %t, got the notes\n%s", values, want, notes)
		}
	}
}

// notesOf are the notes of an installation.
func notesOf(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, err := helm(t, append([]string{"install", "mica", "mica", "--dry-run=client"}, args...)...)
	if err != nil {
		t.Fatalf("helm install: %v\n%s", err, stderr)
	}
	_, notes, found := strings.Cut(stdout, "\nNOTES:\n")
	if !found {
		t.Fatalf("helm install printed no notes:\n%s", stdout)
	}
	return notes
}

func compareGolden(t *testing.T, path, got string) {
	t.Helper()
	got = strings.TrimRight(got, "\n") + "\n" // helm ends what it prints of hooks with an empty line
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("read the golden file: %v; write it with `go test ./deployments/helm -update`", err)
	}
	if got == string(want) {
		return
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i, line := range gotLines {
		if i >= len(wantLines) || line != wantLines[i] {
			expected := "(end of file)"
			if i < len(wantLines) {
				expected = wantLines[i]
			}
			t.Fatalf("%s differs at line %d:\n got: %s\nwant: %s\nIf the change is meant, write the file anew with `go test ./deployments/helm -update` and review it.", path, i+1, line, expected)
		}
	}
	t.Fatalf("%s has %d lines more than helm renders, the first is: %s", path, len(wantLines)-len(gotLines), wantLines[len(gotLines)])
}

// Each file for a platform is accepted by the schema as it is, and says what it is for and where that is from.
func TestValuesForPlatforms(t *testing.T) {
	files, err := filepath.Glob("values/*.yaml")
	if err != nil || len(files) < 6 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			if stdout, stderr, err := helm(t, "lint", "--strict", "mica", "--namespace", "mica", "--values", file); err != nil {
				t.Errorf("helm lint: %v\n%s%s", err, stdout, stderr)
			}
			rendered := render(t, "--namespace", "mica", "--values", file)
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text := string(content)
			if _, root, found := strings.Cut(text, "\nnvidiaDriverRoot: "); found {
				root, _, _ = strings.Cut(root, "\n")
				if !strings.Contains(rendered, "value: \""+root+"\"") {
					t.Errorf("the plugin does not get the driver root %s", root)
				}
			}
			if !strings.HasPrefix(text, "# ") {
				t.Errorf("%s does not say what it is for", file)
			}
		})
	}
}
