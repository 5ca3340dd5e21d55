package launch

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestImagesAreAssembledAnew(t *testing.T) {
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	binaries := map[string]string{"pause": filepath.Join(dir, "pause"), "workload": filepath.Join(dir, "workload")}
	stale := []byte("with the glibc of last year")
	for _, binary := range binaries {
		for path, data := range map[string][]byte{binary: program, binary + ".tar": stale} {
			if err := os.WriteFile(path, data, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	archives, err := assembleImages(binaries)
	if err != nil {
		t.Fatal(err)
	}
	for _, archive := range archives {
		if data, err := os.ReadFile(archive); err != nil || bytes.Equal(data, stale) {
			t.Errorf("%s is stale, %v", archive, err)
		}
	}
	if len(archives) != len(binaries) {
		t.Errorf("got %v", archives)
	}
}
