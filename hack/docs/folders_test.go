package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Who looks for something finds the folder in the table of the development page.
func TestEveryFolderHasARow(t *testing.T) {
	_, after, _ := strings.Cut(read(t, "../../docs/project/development.md"), "\n## The folders\n")
	table, _, _ := strings.Cut(after, "\n## ")
	rows := map[string]bool{}
	for line := range strings.Lines(table) {
		if name, ok := strings.CutPrefix(line, "| [`"); ok {
			name, _, _ = strings.Cut(name, "`")
			rows[name] = true
		}
	}
	for _, parent := range []string{"", "test"} {
		for _, folder := range foldersOf(t, parent) {
			if !rows[folder] {
				t.Errorf("docs/project/development.md has no row for %s in its table of folders", folder)
			}
			delete(rows, folder)
		}
	}
	for folder := range rows {
		t.Errorf("docs/project/development.md has a row for %s, which is no folder", folder)
	}
}

// foldersOf are the folders that are named, but for those of what is built.
func foldersOf(t *testing.T, parent string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, parent))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		if entry.IsDir() && !strings.HasPrefix(entry.Name(), ".") && entry.Name() != "bin" {
			found = append(found, filepath.ToSlash(filepath.Join(parent, entry.Name())))
		}
	}
	if len(found) < 5 {
		t.Fatalf("%q has only %d folders: does the test look in the right place?", parent, len(found))
	}
	return found
}
