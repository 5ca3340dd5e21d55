package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The taints of devices are explained where users look for them, and no others are.
func TestTheTaintsOfDevicesAreDocumented(t *testing.T) {
	keys := map[string]bool{}
	for _, key := range regexp.MustCompile(`(?m)^\s*(?:const )?Taint\w+\s+= "([\w./-]+)"`).FindAllStringSubmatch(read(t, "../../pkg/slice/taint.go"), -1) {
		keys[key[1]] = true
	}
	if len(keys) == 0 {
		t.Fatal("pkg/slice/taint.go has no key: does the test look for the right thing?")
	}
	for _, page := range []string{"reference/attributes.md", "operate/troubleshooting.md"} {
		text := read(t, filepath.Join("../../docs", page))
		for key := range keys {
			if !strings.Contains(text, "`"+key+"`") {
				t.Errorf("docs/%s does not explain the taint %s", page, key)
			}
		}
	}
	// Those of nodes have another domain.
	written := regexp.MustCompile("taint\\s+`(mica\\.gpu/[^`]+)`")
	for _, page := range pagesOfTheSite(t) {
		for _, key := range written.FindAllStringSubmatch(read(t, page), -1) {
			if !keys[key[1]] {
				t.Errorf("%s names the taint %s, which pkg/slice/taint.go does not have", page, key[1])
			}
		}
	}
}
