package docs

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// pages are the files of the documentation's pages, in the order of their names.
func pages(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir("../../docs", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 10 {
		t.Fatalf("there are only %d pages below docs: does the test look in the right place?", len(found))
	}
	return found
}

// Each page says its title twice: to the site in its front matter, and to who reads the file in its first heading.
func TestTheTitleOfAPageIsItsFirstHeading(t *testing.T) {
	for _, page := range pages(t) {
		matter, body, found := strings.Cut(strings.TrimPrefix(read(t, page), "---\n"), "\n---\n\n")
		if !found {
			t.Errorf("%s has no front matter", page)
			continue
		}
		heading, _, _ := strings.Cut(body, "\n")
		heading = strings.TrimPrefix(heading, "# ")
		if !strings.Contains(matter, "title: "+heading+"\n") && !strings.Contains(matter, `title: "`+heading+`"`+"\n") {
			t.Errorf("%s: the first heading is %q, and the front matter has another title:\n%s", page, heading, matter)
		}
	}
}
