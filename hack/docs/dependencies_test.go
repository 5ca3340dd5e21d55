package docs

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each direct requirement of a go.mod has a row on the page, and each row a requirement.
func TestEveryDependencyHasARow(t *testing.T) {
	const page = "docs/project/dependencies.md"
	listed := map[string][]string{}
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")
	for _, section := range strings.Split(read(t, filepath.Join(root, page)), "\n## `")[1:] {
		file, rows, _ := strings.Cut(section, "`\n")
		for _, match := range row.FindAllStringSubmatch(rows, -1) {
			listed[file] = append(listed[file], match[1])
		}
	}
	out, err := exec.Command("git", "-C", root, "ls-files", "go.mod", "*/go.mod").Output()
	if err != nil {
		t.Fatalf("list the modules: %v", err)
	}
	for _, file := range strings.Fields(string(out)) {
		if strings.HasPrefix(file, "test/cluster/build/") {
			continue // what the cluster is made of
		}
		want := directRequirements(t, file)
		if got := slices.Sorted(slices.Values(listed[file])); !slices.Equal(got, want) {
			t.Errorf("%s lists for %s\n%q\nwhich requires\n%q", page, file, got, want)
		}
		delete(listed, file)
	}
	for file := range listed {
		t.Errorf("%s has a list for %s, which is no module of this repository", page, file)
	}
}

// directRequirements are those of a go.mod, without this repository's own module.
func directRequirements(t *testing.T, file string) []string {
	t.Helper()
	out, err := exec.Command("go", "mod", "edit", "-json", filepath.Join(root, file)).Output()
	if err != nil {
		t.Fatalf("read %s: %v", file, err)
	}
	var module struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatalf("read %s: %v", file, err)
	}
	var direct []string
	for _, requirement := range module.Require {
		if !requirement.Indirect && requirement.Path != "github.com/mica-gpu/mica" {
			direct = append(direct, requirement.Path)
		}
	}
	slices.Sort(direct)
	return direct
}
