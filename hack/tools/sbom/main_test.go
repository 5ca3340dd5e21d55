package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// The test describes its own binary, which is linked with the library of the format.
func TestModulesOfABinaryAreListed(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := run(out, []string{"mica", "v1.2.3", self}); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != second.String() {
		t.Error("the same binary gives two documents")
	}
	var read cdx.BOM
	if err := cdx.NewBOMDecoder(&first, cdx.BOMFileFormatJSON).Decode(&read); err != nil {
		t.Fatal(err)
	}
	if got := read.Metadata.Component; got.Name != "mica" || got.Version != "v1.2.3" {
		t.Errorf("the document is about %s %s", got.Name, got.Version)
	}
	found := map[string]bool{}
	for _, c := range *read.Components {
		found[strings.SplitN(c.BOMRef, "@", 2)[0]] = true
	}
	for _, want := range []string{"pkg:golang/std", "pkg:golang/github.com/CycloneDX/cyclonedx-go", "file:" + filepath.Base(self)} {
		if !found[want] {
			t.Errorf("%s is missing", want)
		}
	}
}

func TestBadInput(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{"nothing": nil, "no files": {"mica", "v1"}, "no binary": {"mica", "v1", text}} {
		if err := run(&bytes.Buffer{}, args); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
