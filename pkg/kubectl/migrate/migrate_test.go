package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/test/fixture"
)

const scaler = "mica-controller-keda.mica.svc:9443"

// sources are the manifests of testdata, by the name of their case, with the options.
var sources = map[string]Options{
	"workloads":    {Scaler: scaler},
	"deviceplugin": {Scaler: scaler},
	"timeslices":   {Scaler: scaler},
	"single":       {Scaler: scaler, Profile: "1g.10gb"},
	"nvidia":       {Scaler: scaler},
	"dcgm":         {Scaler: scaler},
	"operator":     {Scaler: scaler},
}

func readSource(t *testing.T, name string) Source {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return Source{Name: name + ".yaml", Text: text}
}

func TestEverySourceFormatMigratesAsItsGoldenFileSays(t *testing.T) {
	for name, options := range sources {
		t.Run(name, func(t *testing.T) {
			result, err := Run([]Source{readSource(t, name)}, options)
			if err != nil {
				t.Fatal(err)
			}
			fixture.Golden(t, name+".migrated", string(result.Manifests))
			for _, width := range []int{0, 100, 40} {
				var out bytes.Buffer
				if err := result.Report.Write(&out, terminal.Screen{Width: width}); err != nil {
					t.Fatal(err)
				}
				fixture.Golden(t, fmt.Sprintf("%s.report-%d", name, width), out.String())
			}
		})
	}
}

// Configs of the device plugin that are no object are given again: they say what is not migrated.
func TestMigratingTwiceChangesNothing(t *testing.T) {
	for name, options := range sources {
		t.Run(name, func(t *testing.T) {
			source := readSource(t, name)
			once, err := Run([]Source{source}, options)
			if err != nil {
				t.Fatal(err)
			}
			again := []Source{{Name: "migrated", Text: once.Manifests}}
			if before, _, found := bytes.Cut(source.Text, []byte("---\n")); found && bytes.HasPrefix(before, []byte("version:")) {
				again = append(again, Source{Name: "config", Text: before})
			}
			twice, err := Run(again, options)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(once.Manifests, twice.Manifests) {
				t.Errorf("once:\n%s\ntwice:\n%s", once.Manifests, twice.Manifests)
			}
			if twice.Report.Moved != 0 {
				t.Errorf("the second run tells of %d changes", twice.Report.Moved)
			}
			if once.Report.Blocked != twice.Report.Blocked {
				t.Errorf("%d cannot move, and then %d", once.Report.Blocked, twice.Report.Blocked)
			}
		})
	}
}

// What has to do with no GPU is kept byte for byte, also what is no good style.
func TestWhatNeedsNoChangeIsKept(t *testing.T) {
	for name, text := range map[string]string{
		"a comment alone": "# nothing yet\n---\napiVersion: v1\nkind: Service\nmetadata: {name: a}\n",
		"odd spaces":      "apiVersion:   v1\nkind:  ConfigMap\nmetadata:\n      name: a\n\n\ndata:\n      a:    |-\n         ---x\n         b\n",
		"no GPU":          "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {selector: {}, template: {spec: {containers: [{name: a, image: b, resources: {limits: {cpu: 1}}}]}}}\n",
		"zero GPUs":       "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: b, resources: {limits: {nvidia.com/gpu: 0}}}]}\n",
		"JSON":            `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}]}` + "\n",
		"of others":       "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: a}\nspec: {triggers: [{type: cron, metadata: {start: a}}]}\n",
	} {
		t.Run(name, func(t *testing.T) {
			result, err := Run([]Source{{Name: "f", Text: []byte(text)}}, Options{})
			if err != nil || string(result.Manifests) != text {
				t.Errorf("got %v\n%s", err, result.Manifests)
			}
		})
	}
}

// One class has all profiles, so its quota is that of all of them together.
func TestQuotasOfProfilesAddUp(t *testing.T) {
	quota := "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: a}\nspec:\n  hard:\n    requests.nvidia.com/mig-1g.10gb: 4\n    requests.nvidia.com/mig-2g.20gb: \"2\"\n    requests.nvidia.com/gpu: 1\n"
	once, err := Run([]Source{{Name: "f", Text: []byte(quota)}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`mig.nvidia.com.deviceclass.resource.k8s.io/devices: "6"`, `  gpu.nvidia.com.deviceclass.resource.k8s.io/devices: "1"`} {
		if !strings.Contains(string(once.Manifests), want) {
			t.Errorf("%q is not in\n%s", want, once.Manifests)
		}
	}
	twice, err := Run([]Source{{Name: "f", Text: once.Manifests}}, Options{})
	if err != nil || !bytes.Equal(once.Manifests, twice.Manifests) {
		t.Errorf("%v, once:\n%s\ntwice:\n%s", err, once.Manifests, twice.Manifests)
	}
}

func TestBadInput(t *testing.T) {
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - {name: a, image: b, resources: {limits: {nvidia.com/gpu: 1}}}\n"
	config := "version: v1\nsharing:\n  timeSlicing:\n    resources: [{name: gpu, replicas: 4}]\n"
	for name, test := range map[string]struct {
		text    string
		options Options
		want    []string
	}{
		"nothing":                   {"", Options{}, []string{"there is no manifest"}},
		"comments alone":            {"# later\n", Options{}, []string{"there is no manifest"}},
		"no YAML":                   {"a: [", Options{}, []string{"f, from line 1", "yaml"}},
		"a text":                    {"hello", Options{}, []string{"this is no manifest"}},
		"the second document":       {pod + "---\n- a\n", Options{}, []string{"f, from line 8", "a list or a text"}},
		"a field that nobody knows": {strings.Replace(pod, "limits", "limit", 1), Options{}, []string{"Pod/a cannot be read", `unknown field "spec.containers[0].resources.limit"`}},
		"a field twice":             {pod + "spec: {}\n", Options{}, []string{"already"}},
		"a wrong type":              {strings.Replace(pod, "nvidia.com/gpu: 1", "nvidia.com/gpu: {}", 1), Options{}, []string{"Pod/a cannot be read"}},
		"directives":                {"%YAML 1.2\n---\n" + pod, Options{}, []string{"directives", "remove them"}},
		"a list in a list":          {"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List, items: []}]\n", Options{}, []string{"items[0] is a List"}},
		"a list of nothing":         {"apiVersion: v1\nkind: List\n", Options{}, []string{"a List needs items"}},
		"an alias in itself":        {"a: &a [*a]\n", Options{}, []string{"f, from line 1"}},
		"laughs": {"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n" +
			"e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n", Options{}, []string{"f, from line 1", "aliasing"}},
		"a config with a typing error": {strings.Replace(config, "replicas", "replica", 1), Options{}, []string{"the device plugin's config in f cannot be read", "replica"}},
		"a config of another version":  {strings.Replace(config, "v1", "v2", 1), Options{}, []string{`version "v2" is not known`}},
		"no replicas":                  {strings.Replace(config, ", replicas: 4", "", 1), Options{}, []string{"sharing.timeSlicing.resources[0]", "replicas"}},
		"a strategy of nobody":         {config + "flags: {migStrategy: some}\n", Options{}, []string{`flags.migStrategy "some"`, "none, single or mixed"}},
		"a flag of nobody":             {config + "flags: {gfd: {once: true}}\n", Options{}, []string{"flags.gfd.once is not known"}},
		"a config that is not there":   {config, Options{Config: "t4"}, []string{"no manifest has a config t4"}},
		"a trigger with a typing error": {"apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: a}\nspec: {triggers: [{type: prometheus, metadatas: {query: DCGM_FI_DEV_GPU_UTIL}}]}\n",
			Options{}, []string{"spec.triggers[0]", "metadatas"}},
		"too much": {"#" + strings.Repeat("a", MaxBytes), Options{}, []string{"more than 16 MiB"}},
		"too many": {strings.Repeat("a: b\n---\n", maxDocuments+1), Options{}, []string{"at most 10000"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Run([]Source{{Name: "f", Text: []byte(test.text)}}, test.options)
			fixture.Sentence(t, err, test.want...)
			if !errors.As(err, &BadInput{}) {
				t.Errorf("%T is no BadInput", err)
			}
		})
	}
}

// What a pod asks for is the same before and after, in whatever style it is written.
func TestStylesMeanTheSame(t *testing.T) {
	block := readSource(t, "workloads")
	var documents []string
	for _, document := range strings.Split(string(block.Text), "\n---\n") {
		text, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, string(text))
	}
	plain, err := Run([]Source{block}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	flow, err := Run([]Source{{Name: "JSON", Text: []byte(strings.Join(documents, "\n---\n"))}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	a, b := strings.Split(string(plain.Manifests), "\n---\n"), strings.Split(string(flow.Manifests), "\n---\n")
	if len(a) != len(b) {
		t.Fatalf("%d documents, and %d from JSON", len(a), len(b))
	}
	for i := range a {
		one, _ := yaml.YAMLToJSON([]byte(a[i]))
		two, _ := yaml.YAMLToJSON([]byte(b[i]))
		if string(one) != string(two) {
			t.Errorf("document %d:\n%s\nfrom JSON:\n%s", i, one, two)
		}
	}
}

func TestCRLF(t *testing.T) {
	source := readSource(t, "timeslices")
	want, err := Run([]Source{source}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Run([]Source{{Name: source.Name, Text: bytes.ReplaceAll(source.Text, []byte("\n"), []byte("\r\n"))}}, Options{})
	if err != nil || !bytes.Equal(got.Manifests, want.Manifests) {
		t.Errorf("got %v\n%s", err, got.Manifests)
	}
}

func FuzzMigrate(f *testing.F) {
	for name := range sources {
		text, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		once, err := Run([]Source{{Name: "f", Text: text}}, Options{})
		if err != nil {
			if !errors.As(err, &BadInput{}) {
				t.Errorf("%T: %v", err, err)
			}
			return
		}
		if len(once.Manifests) == 0 {
			return
		}
		if _, err := Run([]Source{{Name: "f", Text: once.Manifests}}, Options{}); err != nil {
			t.Errorf("its own output is bad input: %v\n%s", err, once.Manifests)
		}
	})
}
