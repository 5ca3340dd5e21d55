package docs

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/test/pages"
)

// pagesOfTheSite are the pages below docs, relative to this directory.
func pagesOfTheSite(t *testing.T) []string {
	t.Helper()
	files, err := pages.Files(root)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		if strings.HasPrefix(file, "docs/") {
			found = append(found, filepath.Join(root, file))
		}
	}
	if len(found) < 10 {
		t.Fatalf("there are only %d pages below docs: does the test look in the right place?", len(found))
	}
	return found
}

// matter is what a page tells the site about itself.
type matter struct {
	Title       string `json:"title"`
	Description string `json:"description"`
	// Weight orders the pages of a part.
	Weight int `json:"weight"`
}

// Each page says its title twice: to the site in its front matter, and to who reads the file in its first heading.
func TestPagesSayWhatTheyAre(t *testing.T) {
	weights := map[string]string{}
	for _, page := range pagesOfTheSite(t) {
		text, _ := strings.CutPrefix(read(t, page), "---\n")
		head, body, found := strings.Cut(text, "\n---\n\n")
		if !found {
			t.Errorf("%s has no front matter", page)
			continue
		}
		var m matter
		if err := yaml.UnmarshalStrict([]byte(head), &m); err != nil {
			t.Errorf("%s: the front matter cannot be read: %v", page, err)
		}
		heading, _, _ := strings.Cut(body, "\n")
		if heading != "# "+m.Title {
			t.Errorf("%s: the title is %q, and the first heading %q", page, m.Title, heading)
		}
		if m.Description == "" {
			t.Errorf("%s has no description, which search and the list of pages show", page)
		}
		if filepath.Base(page) == "_index.md" || filepath.Base(page) == "README.md" {
			continue
		}
		place := fmt.Sprintf("%s %d", filepath.Dir(page), m.Weight)
		if weights[place] != "" {
			t.Errorf("%s and %s have the same weight %d", page, weights[place], m.Weight)
		}
		weights[place] = page
	}
}
