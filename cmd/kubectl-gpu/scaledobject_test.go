package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/elastic/keda"
	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/scaledobject"
	"github.com/mica-gpu/mica/test/fixture"
)

// kubeconfig has a context with namespace default, and -n if named is not empty.
func kubeconfig(named string) clientcmd.ClientConfig {
	return clientcmd.NewDefaultClientConfig(clientcmdapi.Config{
		CurrentContext: "test",
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", Namespace: "default"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: "https://127.0.0.1:6443"}},
	}, &clientcmd.ConfigOverrides{Context: clientcmdapi.Context{Namespace: named}})
}

// printed returns the output and the notes of scaledobject in a cluster.
func printed(t *testing.T, reader client.WithWatch, arguments ...string) (out, notes string, err error) {
	t.Helper()
	command := newScaledObjectCommand(kubeconfig(""), func(clientcmd.ClientConfig) (client.WithWatch, error) { return reader, nil })
	command.SilenceUsage, command.SilenceErrors = true, true
	command.SetArgs(arguments)
	var stdout, stderr bytes.Buffer
	command.SetOut(&stdout)
	command.SetErr(&stderr)
	err = command.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

// documents are the objects of a file.
func documents(t *testing.T, path string) []string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(content), "\n---\n")
}

// applied has the objects of a file in namespace default.
func applied(t *testing.T, path string) client.WithWatch {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme)
	for _, document := range documents(t, path) {
		object := decodeStrict(t, document)
		object.SetNamespace("default")
		builder.WithObjects(object)
	}
	return builder.Build()
}

// header decodes an object's kind.
func header(t *testing.T, document string) metav1.TypeMeta {
	t.Helper()
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
		t.Fatal(err)
	}
	return kind
}

// decodeStrict decodes an object of a registered kind.
func decodeStrict(t *testing.T, document string) client.Object {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	kind := header(t, document)
	object, err := scheme.New(kind.GroupVersionKind())
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
		t.Fatal(err)
	}
	return object.(client.Object)
}

var examples = filepath.Join("..", "..", "examples")

// The command in the first line of an example prints the rest.
func TestTheExamplesAreWhatIsPrinted(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(examples, "*", "scaledobject*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(file string) bool { return file == filepath.Join(examples, "queue", "scaledobject.yaml") }) // by hand
	if len(files) != 5 {
		t.Errorf("there are %d printed ScaledObjects in the examples, want 5", len(files))
	}
	for _, file := range files {
		t.Run(strings.TrimPrefix(file, examples), func(t *testing.T) {
			first, _, _ := strings.Cut(documents(t, file)[0], "\n")
			line, ok := strings.CutPrefix(first, "# kubectl gpu scaledobject ")
			if !ok {
				t.Fatalf("%s begins with %q, want the command", file, first)
			}
			out, notes, err := printed(t, applied(t, filepath.Join(filepath.Dir(file), "workload.yaml")), words(line)...)
			if err != nil || notes != "" {
				t.Fatalf("%v, %s", err, notes)
			}
			fixture.Golden(t, filepath.Join("..", file), first+"\n"+out)
		})
	}
}

// words splits a command line as a shell does, with single quotes.
func words(line string) []string {
	quoted := false
	return strings.FieldsFunc(strings.Map(func(r rune) rune {
		switch {
		case r == '\'':
			quoted = !quoted
			return -1
		case r == ' ' && !quoted:
			return '\n'
		}
		return r
	}, line), func(r rune) bool { return r == '\n' })
}

// kubectl apply reports unknown fields only in part.
func TestTheExamplesOfScalingAreOfKnownFields(t *testing.T) {
	for _, directory := range []string{"llm-serving", "prefill-decode", "batch", "warm-pool", "queue"} {
		files, err := filepath.Glob(filepath.Join(examples, directory, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) < 2 {
			t.Errorf("%s has %d files", directory, len(files))
		}
		for _, file := range files {
			for _, document := range documents(t, file) {
				if header(t, document).Kind != "ScaledObject" {
					decodeStrict(t, document)
				} else if err := yaml.UnmarshalStrict([]byte(document), &scaledobject.ScaledObject{}); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
		}
	}
}

// The controller accepts every printed trigger.
func TestTheControllerReadsWhatIsPrinted(t *testing.T) {
	profiles, err := profile.NewSource("", clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, pattern := range []string{filepath.Join(examples, "*", "*.yaml"), "../../pkg/elastic/scaledobject/testdata/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for _, document := range documents(t, file) {
				if header(t, document).Kind != "ScaledObject" {
					continue
				}
				var object scaledobject.ScaledObject
				if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
					t.Fatal(err)
				}
				for _, trigger := range object.Spec.Triggers {
					if trigger.Type != "external" && trigger.Type != "external-push" {
						continue // KEDA's own
					}
					read++
					if _, err := keda.Parse("default", trigger.Metadata, profiles); err != nil {
						t.Errorf("%s: trigger %s: %v", file, trigger.Name, err)
					}
				}
			}
		}
	}
	if read < 30 {
		t.Errorf("only %d triggers were read", read)
	}
}

const targets = "testdata/targets.yaml"

func TestScaledObjectIsPrintedForWhatAsksForDevices(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		kind      string
		notes     string
	}{
		"a Deployment":          {[]string{"deployment/claims"}, "Deployment", ""},
		"in two words":          {[]string{"deploy", "claims"}, "Deployment", ""},
		"a StatefulSet":         {[]string{"sts/extended"}, "StatefulSet", ""},
		"an implicit resource":  {[]string{"rs/implicit"}, "ReplicaSet", ""},
		"one claim for all":     {[]string{"deployment/shared"}, "Deployment", "share the devices of ResourceClaim one"},
		"another profile":       {[]string{"deployment/claims", "--profiles", "testdata/profiles.yaml", "--profile", "nightly"}, "Deployment", ""},
		"JSON in place of YAML": {[]string{"deployment/claims", "-o", "json"}, "Deployment", ""},
		"another engine":        {[]string{"deployment/claims", "--engine", "dynamo"}, "Deployment", "dynamo has no metric for kvCache: Deployment/claims is scaled by the other signals of profile realtime"},
	} {
		t.Run(name, func(t *testing.T) {
			out, notes, err := printed(t, applied(t, targets), append([]string{"--profile", "realtime", "--model", "m"}, test.arguments...)...)
			if err != nil {
				t.Fatal(err)
			}
			if (test.notes == "") != (notes == "") || !strings.Contains(notes, test.notes) {
				t.Errorf("notes are %q, want %q", notes, test.notes)
			}
			if strings.Contains(out, "namespace:") {
				t.Errorf("the namespace of the context is printed:\n%s", out)
			}
			if strings.HasPrefix(out, "{") != json.Valid([]byte(out)) {
				t.Errorf("not valid JSON:\n%s", out)
			}
			if !strings.Contains(out, test.kind) {
				t.Errorf("there is no %s in\n%s", test.kind, out)
			}
		})
	}
}

// Partitions of some boards report no utilization, by which a profile may scale.
func TestScaledObjectWarnsOfPartitions(t *testing.T) {
	embedding := applied(t, filepath.Join(examples, "embedding", "workload.yaml"))
	for name, test := range map[string]struct {
		arguments []string
		notes     string
	}{
		"beside load":    {[]string{"--profile", "realtime"}, "the load alone decides which replicas of Deployment/embedding stay"},
		"alone":          {[]string{"--profile", "batch"}, "profile batch cannot scale Deployment/embedding"},
		"not by the GPU": {[]string{"--profile", "prefill"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			out, notes, err := printed(t, embedding, append([]string{"deployment/embedding", "--model", "embedding"}, test.arguments...)...)
			if err != nil || out == "" {
				t.Fatal(err)
			}
			if (test.notes == "") != (notes == "") || !strings.Contains(notes, test.notes) {
				t.Errorf("notes are %q, want %q", notes, test.notes)
			}
		})
	}
}

func TestANamedNamespaceIsPrinted(t *testing.T) {
	command := newScaledObjectCommand(kubeconfig("default"), func(clientcmd.ClientConfig) (client.WithWatch, error) { return applied(t, targets), nil })
	var out bytes.Buffer
	command.SetOut(&out)
	command.SetArgs([]string{"deployment/claims", "--profile", "realtime", "--model", "m"})
	if err := command.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "namespace: default") {
		t.Errorf("there is no namespace in\n%s", out.String())
	}
}

func TestScaledObjectThatCannotBePrinted(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		want      []string
	}{
		"of nothing":      {nil, []string{"deployment/NAME"}},
		"of a pod":        {[]string{"pod/a"}, []string{"pod/a", "Deployment"}},
		"of a job":        {[]string{"job/a"}, []string{"Job/a", "no replicas to scale", "StatefulSet"}},
		"as a table":      {[]string{"deployment/claims", "-o", "table"}, []string{"yaml or json", `"table"`}},
		"of no profile":   {[]string{"deployment/claims", "--profile", ""}, []string{"--profile", "batch, conversational, decode, prefill, realtime"}},
		"from no file":    {[]string{"deployment/claims", "--profiles", "missing.yaml"}, []string{"read the profiles", "missing.yaml"}},
		"from a bad file": {[]string{"deployment/claims", "--profiles", targets}, []string{targets, "with profiles"}},
		"of no workload":  {[]string{"deployment/missing"}, []string{"no Deployment/missing in namespace default", "-n"}},
		"of no GPU":       {[]string{"deployment/web"}, []string{"Deployment/web", "ask for no devices", "resourceClaims"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, err := printed(t, applied(t, targets), append([]string{"--profile", "realtime", "--model", "m"}, test.arguments...)...)
			fixture.Sentence(t, err, test.want...)
			if out != "" {
				t.Errorf("printed all the same:\n%s", out)
			}
		})
	}
}

func TestScaledObjectSaysWhatItCannotRead(t *testing.T) {
	refused := errors.New("connection refused")
	reader := interceptor.NewClient(applied(t, targets), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if key.Name == "claims" {
				return refused
			}
			return c.Get(ctx, key, o, opts...)
		},
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return refused },
	})
	_, _, err := printed(t, reader, "deployment/claims", "--profile", "realtime", "--model", "m")
	fixture.Sentence(t, err, "read Deployment/claims in namespace default", "connection refused")
	_, _, err = printed(t, reader, "deployment/web", "--profile", "realtime", "--model", "m")
	fixture.Sentence(t, err, "list the DeviceClasses", "connection refused")
	if !errors.Is(err, refused) {
		t.Error("the cause is lost")
	}
}
