package build

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// recipe is everything that decides what a group's binaries are, apart from
// the sources that go.sum pins.
type recipe struct {
	version string
	tags    []string
	ldflags string
	cgo     string
	// toolchain is the Go version with the platform, such as
	// "go1.26.0 linux/amd64".
	toolchain string
}

func newRecipe(g Group, source, toolchain string) (recipe, error) {
	version, err := g.Version(source)
	if err != nil {
		return recipe{}, err
	}
	r := recipe{version: version, cgo: "0", ldflags: "-s -w", toolchain: toolchain}
	if g.CGO {
		r.cgo = "1"
	}
	if g.Tags != nil {
		r.tags = g.Tags()
	}
	if g.Stamp != nil {
		for _, assignment := range g.Stamp(version) {
			r.ldflags += " -X " + assignment
		}
	}
	return r, nil
}

// key names the group's directory in the cache. Anything that could change a
// binary changes it.
func (r recipe) key(g Group, source string) (string, error) {
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n%s\n%s\n%s\n", r.toolchain, r.cgo, strings.Join(append(r.tags, Tags...), ","), r.ldflags)
	for _, name := range g.Names() {
		fmt.Fprintf(sum, "%s=%s\n", name, g.Packages[name])
	}
	files := []string{"go.mod", "go.sum"}
	for _, stand := range g.Replace {
		relative, err := filepath.Rel(g.Dir(source), filepath.Join(source, stand))
		if err != nil {
			return "", fmt.Errorf("finding %s: %w", stand, err)
		}
		files = append(files, relative)
	}
	sort.Strings(files)
	for _, dir := range g.Sources {
		more, err := goFiles(g.Dir(source), dir)
		if err != nil {
			return "", fmt.Errorf("listing the sources of %s: %w", g.Name, err)
		}
		files = append(files, more...)
	}
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(g.Dir(source), file))
		if err != nil {
			return "", fmt.Errorf("reading what the binaries of %s depend on: %w", g.Name, err)
		}
		fmt.Fprintf(sum, "%s %d\n", file, len(data))
		sum.Write(data)
	}
	return fmt.Sprintf("%s-%s-%s", g.Name, r.version, hex.EncodeToString(sum.Sum(nil))[:12]), nil
}

// goFiles lists the Go files below dir that are not tests, relative to root.
func goFiles(root, dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		relative, err := filepath.Rel(root, path)
		files = append(files, relative)
		return err
	})
	sort.Strings(files)
	return files, err
}
