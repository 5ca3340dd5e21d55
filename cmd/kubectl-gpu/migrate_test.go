package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/pkg/kubectl/migrate"
	"github.com/mica-gpu/mica/test/fixture"
)

const (
	podWithGPU = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - {name: a, image: b, resources: {limits: {nvidia.com/gpu: 1}}}\n"
	podWithout = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - {name: a, image: b}\n"
)

// migrated is what a run of migrate printed.
type migrated struct {
	out, notes string
	err        error
}

// runMigrate runs the command in the namespace research of a cluster.
func runMigrate(t *testing.T, reader client.Reader, in string, arguments ...string) migrated {
	t.Helper()
	config := clientcmd.NewNonInteractiveClientConfig(clientcmdapi.Config{
		Contexts: map[string]*clientcmdapi.Context{"test": {Cluster: "test", Namespace: "research"}},
		Clusters: map[string]*clientcmdapi.Cluster{"test": {Server: "https://192.0.2.1"}},
	}, "test", nil, nil)
	command := newMigrateCommand(config, func(clientcmd.ClientConfig) (client.Reader, error) {
		if reader == nil {
			return nil, errors.New("a file needs no cluster")
		}
		return reader, nil
	})
	var out, notes bytes.Buffer
	command.SetArgs(append([]string{}, arguments...))
	command.SetIn(strings.NewReader(in))
	command.SetOut(&out)
	command.SetErr(&notes)
	command.SilenceErrors, command.SilenceUsage = true, true
	err := command.ExecuteContext(t.Context())
	return migrated{out.String(), notes.String(), err}
}

func TestMigrateReadsFilesDirectoriesAndStandardInput(t *testing.T) {
	directory := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": podWithGPU, "b.json": `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}`,
		"README.md": "not a manifest", "below/c.yml": strings.ReplaceAll(podWithGPU, "name: a}\nspec", "name: c}\nspec"),
	} {
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		arguments []string
		want      []string
		missing   string
	}{
		"a file":           {[]string{"-f", filepath.Join(directory, "a.yaml")}, []string{"name: a-gpu"}, "Service"},
		"a directory":      {[]string{"-f", directory}, []string{"name: a-gpu", "Service"}, "name: c-gpu"},
		"and those below":  {[]string{"-R", "-f", directory}, []string{"name: a-gpu", "Service", "name: c-gpu"}, "not a manifest"},
		"standard input":   {[]string{"-f", "-"}, []string{"name: a-gpu"}, "Service"},
		"the report alone": {[]string{"-f", "-", "-o", "table"}, []string{"OUTCOME", "Pod/a"}, "apiVersion"},
	} {
		t.Run(name, func(t *testing.T) {
			got := runMigrate(t, nil, podWithGPU, test.arguments...)
			if got.err != nil {
				t.Fatal(got.err)
			}
			for _, want := range test.want {
				if !strings.Contains(got.out, want) {
					t.Errorf("%s is missing in:\n%s", want, got.out)
				}
			}
			if strings.Contains(got.out, test.missing) {
				t.Errorf("%s is in:\n%s", test.missing, got.out)
			}
		})
	}
}

func TestMigrateEndsWithACodeForScripts(t *testing.T) {
	blocked := strings.Replace(podWithGPU, "nvidia.com/gpu", "nvidia.com/mig-1c.3g.40gb", 1)
	for name, test := range map[string]struct {
		in   string
		want int
	}{
		"moved":     {podWithGPU, 0},
		"no GPUs":   {podWithout, 0},
		"blocked":   {blocked, exitNo},
		"one of it": {podWithGPU + "---\n" + blocked, exitNo},
		"nonsense":  {"a: [", exitFailed},
	} {
		if got := runMigrate(t, nil, test.in, "-f", "-"); exitCode(got.err) != test.want {
			t.Errorf("%s: %v, want the code %d", name, got.err, test.want)
		}
	}
}

func TestMigratePrintsAReportForPrograms(t *testing.T) {
	got := runMigrate(t, nil, podWithGPU, "-f", "-", "-o", "json")
	var report migrate.Report
	if err := json.Unmarshal([]byte(got.out), &report); err != nil || report.Objects != 1 || report.Moved == 0 {
		t.Errorf("got %v, %+v", err, report)
	}
}

func TestMigrateRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		want      []string
	}{
		"an argument":              {[]string{"pod/a"}, []string{"pod/a", "--help"}},
		"a format":                 {[]string{"-f", "-", "-o", "wide"}, []string{"wide", "yaml, table, json"}},
		"files and labels":         {[]string{"-f", "-", "-l", "a=b"}, []string{"leave them out with -f"}},
		"files and a check":        {[]string{"-f", "-", "--check"}, []string{"leave -f and -A out"}},
		"a selector that is none":  {[]string{"-l", "a in b"}, []string{"a in b"}},
		"a profile that is none":   {[]string{"-f", "-", "--mig-profile", "small"}, []string{"--mig-profile", "1g.10gb"}},
		"a file that is not there": {[]string{"-f", "missing.yaml"}, []string{"missing.yaml"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := runMigrate(t, cluster(t, interceptor.Funcs{}), podWithGPU, test.arguments...)
			fixture.Sentence(t, got.err, test.want...)
			if exitCode(got.err) != exitFailed {
				t.Errorf("the exit code is %d", exitCode(got.err))
			}
		})
	}
}

// migrateCluster has the objects of testdata/migrate.yaml.
func migrateCluster(t *testing.T, failures interceptor.Funcs) client.Reader {
	t.Helper()
	return clusterOf(t, "testdata/migrate.yaml").
		WithIndex(slicesByDriver()).WithInterceptorFuncs(failures).Build()
}

// slicesByDriver is what the API server can select slices by.
func slicesByDriver() (client.Object, string, client.IndexerFunc) {
	return &resourceapi.ResourceSlice{}, resourceapi.ResourceSliceSelectorDriver, func(o client.Object) []string {
		return []string{o.(*resourceapi.ResourceSlice).Spec.Driver}
	}
}

func slicesByNode() (client.Object, string, client.IndexerFunc) {
	return &resourceapi.ResourceSlice{}, resourceapi.ResourceSliceSelectorNodeName, func(o client.Object) []string {
		if node := o.(*resourceapi.ResourceSlice).Spec.NodeName; node != nil {
			return []string{*node}
		}
		return nil
	}
}

// Of what runs only what can change is printed, as somebody would have written it.
func TestMigrateReadsTheCluster(t *testing.T) {
	got := runMigrate(t, migrateCluster(t, interceptor.Funcs{}), "")
	if exitCode(got.err) != exitNo {
		t.Errorf("got %v: the Job cannot move", got.err)
	}
	fixture.Golden(t, "migrate.txt", got.out)
	fixture.Golden(t, "migrate.notes", got.notes)
}

func TestMigrateByLabels(t *testing.T) {
	got := runMigrate(t, migrateCluster(t, interceptor.Funcs{}), "", "-l", "app=llm")
	if got.err != nil || !strings.Contains(got.out, "name: llm-gpu") {
		t.Errorf("got %v\n%s", got.err, got.out)
	}
}

func TestMigratePlansNodeByNode(t *testing.T) {
	reader := migrateCluster(t, interceptor.Funcs{})
	got := runMigrate(t, reader, "", "--check")
	fixture.Sentence(t, got.err, "1 of 2 nodes with GPUs have still to move")
	if exitCode(got.err) != exitNo {
		t.Errorf("the exit code is %d", exitCode(got.err))
	}
	fixture.Golden(t, "migrate.plan", got.out)
	done := runMigrate(t, reader, "", "--check", "-l", "moved=true", "-o", "json")
	var plan migrate.Plan
	if err := json.Unmarshal([]byte(done.out), &plan); err != nil || done.err != nil || len(plan.Nodes) != 1 || plan.Nodes[0].State != migrate.Mica {
		t.Errorf("got %v, %v, %+v", done.err, err, plan)
	}
}

// Who may not see something is told what.
func TestMigrateWithoutRights(t *testing.T) {
	forbid := func(what string) interceptor.Funcs {
		return interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if kind := list.GetObjectKind().GroupVersionKind().Kind; what == "" || strings.Contains(strings.ToLower(kind)+typeName(list), what) {
				return apierrors.NewForbidden(schema.GroupResource{Resource: what}, "", errors.New("no"))
			}
			return c.List(ctx, list, options...)
		}}
	}
	got := runMigrate(t, migrateCluster(t, forbid("")), "")
	fixture.Sentence(t, got.err, "you may list no workloads in namespace research", "-f")
	got = runMigrate(t, migrateCluster(t, forbid("job")), "")
	if got.err != nil || !strings.Contains(got.notes, "note: you may not list the Jobs") || !strings.Contains(got.out, "llm-gpu") {
		t.Errorf("got %v\n%s", got.err, got.notes)
	}
	got = runMigrate(t, migrateCluster(t, forbid("node")), "", "--check")
	fixture.Sentence(t, got.err, "you may not list the nodes", "let somebody run it who may")
}

func typeName(list client.ObjectList) string {
	return strings.ToLower(fmt.Sprintf("%T", list))
}
