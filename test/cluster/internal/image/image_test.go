package image

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// dynamicBinary is a program that glibc's loader starts.
const dynamicBinary = "/bin/ls"

func write(t *testing.T, recipe Recipe) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := recipe.Write(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// files are an archive's headers by name, with the names of symbolic links'
// targets.
func files(t *testing.T, archive, reference string) map[string]*tar.Header {
	t.Helper()
	tag, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(archive, &tag)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	found := map[string]*tar.Header{}
	for reader := tar.NewReader(content); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimSuffix(header.Name, "/")] = header
	}
}

func TestAnImageOfADynamicBinaryHasItsLoaderAndLibraries(t *testing.T) {
	const reference = "mica.local/probe:dev"
	found := files(t, write(t, Recipe{Name: reference, Binaries: []string{dynamicBinary}}), reference)
	if header := found["usr/bin/ls"]; header == nil || header.Mode != 0o755 {
		t.Errorf("the binary is %+v", header)
	}
	loader, _, err := dynamic(dynamicBinary)
	if err != nil || loader == "" {
		t.Fatalf("%s names the loader %q, %v", dynamicBinary, loader, err)
	}
	if _, ok := found[unmerge(strings.TrimPrefix(loader, "/"))]; !ok {
		t.Errorf("the loader %s is missing", loader)
	}
	for _, library := range opened {
		if !slices.ContainsFunc(keys(found), func(path string) bool { return filepath.Base(path) == library }) {
			t.Errorf("%s is missing", library)
		}
	}
	for link, target := range map[string]string{"lib": "usr/lib", "lib64": "usr/lib64", "bin": "usr/bin", "var/run": "../run"} {
		if header := found[link]; header == nil || header.Linkname != target {
			t.Errorf("%s is %+v, want a link to %s", link, header, target)
		}
	}
	for _, need := range []string{"tmp", "etc/passwd", "usr/lib64", "dev", "proc"} {
		if found[need] == nil {
			t.Errorf("%s is missing", need)
		}
	}
}

func keys(files map[string]*tar.Header) []string {
	var names []string
	for name := range files {
		names = append(names, name)
	}
	return names
}

func TestEveryDirectoryComesBeforeItsFiles(t *testing.T) {
	tree := newTree()
	if err := tree.file(dynamicBinary, "/opt/deep/down/ls"); err != nil {
		t.Fatal(err)
	}
	archive, err := tree.archive()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{".": true}
	for reader := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		path := strings.TrimSuffix(header.Name, "/")
		if !seen[filepath.Dir(path)] {
			t.Errorf("%s comes before its directory", path)
		}
		seen[path] = true
	}
}

func TestTheSameInputsGiveTheSameBytes(t *testing.T) {
	recipe := Recipe{Name: "mica.local/probe:dev", Binaries: []string{dynamicBinary}, Entrypoint: []string{"/usr/bin/ls", "/"}}
	first, err := os.ReadFile(write(t, recipe))
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(write(t, recipe))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("two archives differ")
	}
}

func TestAStaticBinaryNeedsNothingUnlessGlibcIsAskedFor(t *testing.T) {
	static := staticBinary(t)
	for glibc, want := range map[bool]bool{false: false, true: true} {
		libraries, err := dependencies([]string{static}, glibc)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(libraries) > 0; got != want {
			t.Errorf("with glibc %t the libraries are %v", glibc, libraries)
		}
	}
}

// staticBinary makes the smallest ELF file without a loader.
func staticBinary(t *testing.T) string {
	t.Helper()
	header := make([]byte, 64)
	copy(header, elf.ELFMAG)
	header[elf.EI_CLASS], header[elf.EI_DATA], header[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	header[16], header[18], header[20], header[52], header[58] = byte(elf.ET_EXEC), byte(elf.EM_X86_64), byte(elf.EV_CURRENT), 64, 64
	path := filepath.Join(t.TempDir(), "static")
	if err := os.WriteFile(path, header, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBadRecipes(t *testing.T) {
	for want, recipe := range map[string]Recipe{
		"give it whole":         {Name: "workload", Binaries: []string{dynamicBinary}},
		"needs a binary":        {Name: "mica.local/probe:dev"},
		"no such file":          {Name: "mica.local/probe:dev", Binaries: []string{"/nowhere"}},
		"/etc/passwd as an ELF": {Name: "mica.local/probe:dev", Binaries: []string{"/etc/passwd"}},
	} {
		err := recipe.Write(filepath.Join(t.TempDir(), "image.tar"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
