package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

// source is this module as a checkout has it.
const source = "../.."

func TestEveryModuleListsItsPackagesAsTools(t *testing.T) {
	packages := map[string][]string{}
	for _, group := range Groups() {
		if group.Module == "" {
			continue
		}
		for _, pkg := range group.Packages {
			packages[group.Dir(source)] = append(packages[group.Dir(source)], pkg)
		}
		if _, err := group.Version(source); err != nil {
			t.Error(err)
		}
	}
	for dir, packages := range packages {
		var tools []string
		for _, tool := range readModule(t, dir).Tool {
			tools = append(tools, tool.Path)
		}
		slices.Sort(tools)
		slices.Sort(packages)
		if !slices.Equal(tools, packages) {
			t.Errorf("%s/go.mod has the tools\n%v\nand the groups the packages\n%v", dir, tools, packages)
		}
	}
}

func readModule(t *testing.T, dir string) *modfile.File {
	t.Helper()
	path := filepath.Join(dir, "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mod, err := modfile.Parse(path, data, nil)
	if err != nil {
		t.Fatal(err)
	}
	return mod
}

// The go command compiles a package again for every version of anything below it,
// and fetches each version.
func TestModulesThatAreBuiltTogetherAgreeOnVersions(t *testing.T) {
	const root = "../../../.."
	wanted := map[string]string{}
	cluster := filepath.Join(source, "build/cluster")
	for _, require := range readModule(t, cluster).Require {
		wanted[require.Mod.Path] = require.Mod.Version
	}
	for _, dir := range []string{root, source, filepath.Join(root, "test/scheduler")} {
		for _, require := range readModule(t, dir).Require {
			if want, ok := wanted[require.Mod.Path]; ok && require.Mod.Version != want {
				t.Errorf("%s/go.mod requires %s and test/cluster/build/cluster/go.mod %s: in the one with the older run `go get %s@VERSION`, with the newer one's VERSION, and `go mod tidy`",
					dir, require.Mod, want, require.Mod.Path)
			}
		}
	}
}

// The Makefile's flags are those of this package, for the same reason.
func TestTheMakefileBuildsWithTheSameTags(t *testing.T) {
	makefile, err := os.ReadFile("../../../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if want := "-tags=" + strings.Join(Tags, ","); !strings.Contains(string(makefile), want) {
		t.Errorf("the Makefile does not have %s", want)
	}
}

func TestBinariesHaveOneGroupEach(t *testing.T) {
	seen := map[string]string{}
	for _, group := range Groups() {
		for _, name := range group.Names() {
			if other, ok := seen[name]; ok {
				t.Errorf("%s is in %s and %s", name, other, group.Name)
			}
			seen[name] = group.Name
		}
	}
	if _, err := Find(Groups(), "docker"); err == nil || !strings.Contains(err.Error(), "there are containerd,") {
		t.Errorf("an unknown binary gives %v", err)
	}
}

func TestStampSplitsTheVersion(t *testing.T) {
	stamp := strings.Join(kubernetesStamp("v1.37.1"), " ")
	for _, want := range []string{"version.gitVersion=v1.37.1", "version.gitMajor=1", "version.gitMinor=37"} {
		if !strings.Contains(stamp, want) {
			t.Errorf("%q is not in %q", want, stamp)
		}
	}
}

// checkout makes a checkout with one group and one binary of its own.
func checkout(t *testing.T) (string, Group) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":            "module example.com/own\n\ngo 1.26.0\n",
		"go.sum":            "",
		"tool/main.go":      "package main\n\nfunc main() {}\n",
		"other/v2/main.go":  "package main\n\nfunc main() {}\n",
		"tool/main_test.go": "package main\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir, Group{Name: "own", Packages: map[string]string{"tool": "example.com/own/tool", "other": "example.com/own/other/v2"}, Sources: []string{"tool"}}
}

func TestKeyChangesWithWhateverChangesTheBinary(t *testing.T) {
	dir, group := checkout(t)
	key := func(group Group, toolchain string) string {
		t.Helper()
		recipe, err := newRecipe(group, dir, toolchain)
		if err != nil {
			t.Fatal(err)
		}
		key, err := recipe.key(group, dir)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	base := key(group, "go1.26.0")
	if again := key(group, "go1.26.0"); again != base {
		t.Fatalf("the key is %s and then %s", base, again)
	}
	if !strings.HasPrefix(base, "own-dev-") {
		t.Errorf("the key is %s", base)
	}
	tagged, stamped, linked := group, group, group
	tagged.Tags = func() []string { return []string{"seccomp"} }
	stamped.Stamp = func(string) []string { return []string{"main.version=1"} }
	linked.CGO = true
	for what, other := range map[string]string{
		"the Go version": key(group, "go1.26.1"),
		"a tag":          key(tagged, "go1.26.0"),
		"a stamp":        key(stamped, "go1.26.0"),
		"cgo":            key(linked, "go1.26.0"),
	} {
		if other == base {
			t.Errorf("%s does not change the key", what)
		}
	}
	for _, test := range []struct {
		file    string
		changes bool
	}{{"go.sum", true}, {"tool/main.go", true}, {"tool/main_test.go", false}} {
		before := key(group, "go1.26.0")
		path := filepath.Join(dir, test.file)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		if changed := key(group, "go1.26.0") != before; changed != test.changes {
			t.Errorf("a change of %s changes the key: %t, want %t", test.file, changed, test.changes)
		}
	}
}

func TestCacheBuildsOnceAndWhole(t *testing.T) {
	dir, group := checkout(t)
	var progress strings.Builder
	var reported []string
	cache := &Cache{
		Source: dir, Root: t.TempDir(), Progress: &progress,
		Started: func(missing, present int) {
			reported = append(reported, fmt.Sprintf("%d missing, %d present", missing, present))
		},
		Built: func(name string) { reported = append(reported, name) },
	}
	build := func() string {
		t.Helper()
		paths, err := cache.Build(t.Context(), []Group{group}, "tool", "other")
		if err != nil {
			t.Fatalf("%v\n%s", err, progress.String())
		}
		for _, name := range []string{"tool", "other"} {
			if !present(paths[name]) || filepath.Base(paths[name]) != name {
				t.Fatalf("%s is no executable %s", paths[name], name)
			}
		}
		return filepath.Dir(paths["tool"])
	}
	bin := build()
	first := progress.String()
	build()
	if progress.String() != first {
		t.Errorf("a second call builds again:\n%s", progress.String())
	}
	slices.Sort(reported[1:3])
	if want := []string{"2 missing, 0 present", "other", "tool", "0 missing, 2 present"}; !slices.Equal(reported, want) {
		t.Errorf("reported %q, want %q", reported, want)
	}
	entries, err := os.ReadDir(bin)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 {
		t.Errorf("%s holds %v", bin, entries)
	}
	if left, err := filepath.Glob(filepath.Join(cache.Root, ".stage-*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestCacheLeavesNothingOfABrokenBuild(t *testing.T) {
	dir, group := checkout(t)
	if err := os.WriteFile(filepath.Join(dir, "tool/main.go"), []byte("package main\n\nfunc main() { oops }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var progress strings.Builder
	cache := &Cache{Source: dir, Root: t.TempDir(), Progress: &progress}
	if _, err := cache.Build(t.Context(), []Group{group}, "tool"); err == nil || !strings.Contains(err.Error(), "building tool") {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(progress.String(), "undefined: oops") {
		t.Errorf("the compiler's words are missing:\n%s", progress.String())
	}
	for _, pattern := range []string{"*/bin/*", ".stage-*"} {
		if found, err := filepath.Glob(filepath.Join(cache.Root, pattern)); err != nil || len(found) > 0 {
			t.Errorf("left %v, %v", found, err)
		}
	}
}

func TestTheWaitForAnotherBuildCanBeInterrupted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	never := func() { t.Error("it waits for a free lock") }
	unlock, err := lock(t.Context(), path, never)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	reported := 0
	if _, err := lock(ctx, path, func() { reported++; cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if reported != 1 {
		t.Errorf("waits was called %d times", reported)
	}
	if _, err := lock(t.Context(), path, unlock); err != nil {
		t.Errorf("once the other has ended: %v", err)
	}
}
