package floors

import (
	"fmt"
	"slices"
	"strings"
)

// source is one Go file: where it is, relative to the root of the repository,
// and what it imports.
type source struct {
	dir     string
	name    string
	imports []string
}

// violations returns a sentence for each import that is against the table.
func violations(sources []source) []string {
	var found []string
	for _, s := range sources {
		if hasFloor(s.dir) && room(s.dir) == "" {
			found = append(found, fmt.Sprintf("%s is on no floor: add it to the table in hack/floors/table_test.go, with the reason for its place in the design", s.dir))
			continue
		}
		for _, path := range s.imports {
			if complaint := s.check(path); complaint != "" {
				found = append(found, fmt.Sprintf("%s/%s imports %s: %s", s.dir, s.name, path, complaint))
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// check returns what is wrong with one import, or nothing.
func (s source) check(path string) string {
	if strings.HasPrefix(path+"/", nvmlModule) {
		if !slices.ContainsFunc(nvmlImporters, func(r string) bool { return isIn(s.dir, r) }) {
			return "only " + strings.Join(nvmlImporters, ", ") + " may; ask pkg/node/nvml instead"
		}
		return ""
	}
	target, ours := strings.CutPrefix(path, module)
	if !ours || isIn(s.dir, "test") || isIn(s.dir, "hack") {
		return ""
	}
	switch {
	case isIn(target, "test"):
		if !strings.HasSuffix(s.name, "_test.go") {
			return "what is for tests may not be built into the product"
		}
	case isIn(target, "hack"):
		return "hack is for the workshop"
	case isIn(s.dir, "api") && !isIn(target, "api"):
		return "api holds types and imports nothing of the project"
	case hasFloor(s.dir) && hasFloor(target) && room(target) != "":
		from, to := room(s.dir), room(target)
		if from != to && floors[to] >= floors[from] {
			return fmt.Sprintf("%s is on floor %d and %s on floor %d, and imports point down; declare an interface where it is used, or move the shared part below both",
				from, floors[from], to, floors[to])
		}
	}
	return ""
}

func hasFloor(dir string) bool { return isIn(dir, "pkg") || isIn(dir, "cmd") }

// room returns the innermost room of the table that dir is in, or nothing.
func room(dir string) string {
	best := ""
	for r := range floors {
		if isIn(dir, r) && len(r) > len(best) {
			best = r
		}
	}
	return best
}

func isIn(dir, room string) bool { return strings.HasPrefix(dir+"/", room+"/") }
