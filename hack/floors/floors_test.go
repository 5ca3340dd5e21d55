package floors

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestImportsPointDown(t *testing.T) {
	sources := parse(t, os.DirFS(filepath.Join("..", "..")))
	if len(sources) < 10 {
		t.Fatalf("only %d Go files were found: the test does not look at the repository", len(sources))
	}
	for _, v := range violations(sources) {
		t.Error(v)
	}
}

// An import of one constant can bring in NVML and cgo.
func TestWhatRunsAnywhereLinksNoHardware(t *testing.T) {
	for _, command := range anywhere {
		list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{.ImportPath}} {{if not .Standard}}{{join .CgoFiles \" \"}}{{end}}", module+command)
		list.Env = append(list.Environ(), "CGO_ENABLED=1")
		out, err := list.Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			path, cgo, _ := strings.Cut(strings.TrimSpace(line), " ")
			if slices.ContainsFunc(hardwareModules, func(m string) bool { return strings.HasPrefix(path+"/", m) }) {
				t.Errorf("%s links %s, which is for nodes with GPUs: move what it needs to a room that both share", command, path)
			}
			if cgo != "" {
				t.Errorf("%s needs cgo for %s (%s)", command, path, cgo)
			}
		}
	}
}

// parse reads the imports of the main module's files.
func parse(t *testing.T, root fs.FS) []source {
	t.Helper()
	var sources []source
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name != "." && !isOurs(root, name) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil {
			return err
		}
		s := source{dir: path.Dir(name), name: path.Base(name)}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			s.imports = append(s.imports, imported)
		}
		sources = append(sources, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sources
}

// isOurs leaves out what the go command leaves out of ./...: hidden directories,
// test data and other modules.
func isOurs(root fs.FS, dir string) bool {
	base := path.Base(dir)
	if strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" {
		return false
	}
	_, err := fs.Stat(root, path.Join(dir, "go.mod"))
	return err != nil
}

func TestEachRuleCanBeBroken(t *testing.T) {
	for name, tc := range map[string]struct {
		source source
		want   string // part of the complaint; nothing if there is none
	}{
		"down":                     {source{"pkg/node/driver", "a.go", []string{module + "pkg/node/prepare", module + "pkg/gpu"}}, ""},
		"down from cmd":            {source{"cmd/kubelet-plugin", "a.go", []string{module + "pkg/node/driver"}}, ""},
		"own room":                 {source{"pkg/node/driver/metrics", "a.go", []string{module + "pkg/node/driver"}}, ""},
		"other modules":            {source{"pkg/gpu", "a.go", []string{"fmt", "k8s.io/api/resource/v1"}}, ""},
		"up":                       {source{"pkg/gpu", "a.go", []string{module + "pkg/slice"}}, "pkg/gpu is on floor 0 and pkg/slice on floor 2"},
		"up in a test":             {source{"pkg/gpu", "a_test.go", []string{module + "pkg/slice"}}, "imports point down"},
		"sideways":                 {source{"pkg/slice", "a.go", []string{module + "pkg/node/cdi"}}, "imports point down"},
		"into cmd":                 {source{"pkg/node/driver", "a.go", []string{module + "cmd/kubelet-plugin"}}, "imports point down"},
		"from below its own room":  {source{"pkg/scaleout", "a.go", []string{module + "pkg/scaleout/pair"}}, "pkg/scaleout/pair on floor 7"},
		"to the room around":       {source{"pkg/scaleout/pair", "a.go", []string{module + "pkg/scaleout"}}, ""},
		"unknown":                  {source{"pkg/util", "a.go", nil}, "pkg/util is on no floor: add it to the table"},
		"unknown command":          {source{"cmd/tool", "a.go", nil}, "cmd/tool is on no floor"},
		"alike is not inside":      {source{"pkg/gpus", "a.go", nil}, "pkg/gpus is on no floor"},
		"go-nvml at the boundary":  {source{"pkg/node/nvml", "a.go", []string{nvmlModule + "pkg/nvml"}}, ""},
		"go-nvml in the simulator": {source{"test/nvmlsim/model", "a.go", []string{nvmlModule + "pkg/nvml"}}, ""},
		"go-nvml above":            {source{"pkg/node/prepare", "a.go", []string{nvmlModule + "pkg/nvml"}}, "only pkg/node/nvml, pkg/node/cdi, test/nvmlsim may"},
		"go-nvml in a test":        {source{"pkg/node/prepare", "a_test.go", []string{nvmlModule + "pkg/nvml"}}, "ask pkg/node/nvml instead"},
		"go-nvml in e2e":           {source{"test/e2e", "a_test.go", []string{nvmlModule + "pkg/nvml"}}, "ask pkg/node/nvml instead"},
		"simulator in a test":      {source{"pkg/node/nvml", "a_test.go", []string{module + "test/nvmlsim/model"}}, ""},
		"simulator in the product": {source{"pkg/node/nvml", "a.go", []string{module + "test/nvmlsim/model"}}, "may not be built into the product"},
		"hack in the product":      {source{"pkg/node/nvml", "a.go", []string{module + "hack/floors"}}, "hack is for the workshop"},
		"api stands alone":         {source{"api/v1alpha1", "a.go", []string{module + "pkg/gpu"}}, "api holds types"},
		"api for all":              {source{"pkg/gpu", "a.go", []string{module + "api/v1alpha1"}}, ""},
		"tests take anything":      {source{"test/e2e", "a.go", []string{module + "pkg/node/driver"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(violations([]source{tc.source}), "\n")
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
