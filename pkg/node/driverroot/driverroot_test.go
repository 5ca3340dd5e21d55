package driverroot

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// install makes empty files below a new driver root.
func install(t *testing.T, files ...string) (root string) {
	t.Helper()
	root = t.TempDir()
	for _, file := range files {
		must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(file)), 0o755))
		must(t, os.WriteFile(filepath.Join(root, file), nil, 0o755))
	}
	return root
}

func TestFindWhereDistributionsHaveIt(t *testing.T) {
	for _, dir := range programDirs {
		root := install(t, dir+"/nvidia-smi")
		if path, err := NewTools(root, "").Find("nvidia-smi"); err != nil || path != filepath.Join(root, dir, "nvidia-smi") {
			t.Errorf("%s: got %q, %v", dir, path, err)
		}
	}
	root := install(t, "usr/bin/nvidia-smi/here")
	if path, err := NewTools(root, "").Find("nvidia-smi"); !errors.Is(err, ErrMissing) {
		t.Errorf("a directory is taken for a program: %q, %v", path, err)
	}
}

func variable(environment []string, name string) (values []string) {
	for _, entry := range environment {
		if value, found := strings.CutPrefix(entry, name+"="); found {
			values = append(values, value)
		}
	}
	return values
}

// The C library of the host must not be found: another loader than its own ends
// every program with a symbol lookup error.
func TestProgramsFindTheDriversLibrariesAndNoOthers(t *testing.T) {
	t.Setenv("LD_PRELOAD", "/other.so")
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "/other")
	t.Setenv("PATH", "/own")
	lib := "usr/lib/x86_64-linux-gnu/"
	root := install(t, lib+"libnvidia-ml.so.1", lib+"libcuda.so.1", lib+"libcuda.so.580.1", lib+"libnvidia-ptxjitcompiler.so.1", lib+"libc.so.6", lib+"libcudart.so.12")
	links := filepath.Join(t.TempDir(), "links")
	environment, err := NewTools(root, links).Environment()
	must(t, err)
	if got := variable(environment, "LD_LIBRARY_PATH"); !slices.Equal(got, []string{links}) {
		t.Errorf("LD_LIBRARY_PATH is %q", got)
	}
	if got := append(variable(environment, "LD_PRELOAD"), variable(environment, "CUDA_MPS_PIPE_DIRECTORY")...); got != nil {
		t.Errorf("variables of others are passed on: %q", got)
	}
	if got := variable(environment, "PATH"); len(got) != 1 || !strings.HasPrefix(got[0], root+"/usr/bin:") || !strings.HasSuffix(got[0], ":/own") {
		t.Errorf("PATH is %q", got)
	}
	expectLinks(t, links, "libcuda.so.1", "libcuda.so.580.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")
}

func expectLinks(t *testing.T, links string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(links)
	must(t, err)
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
		if _, err := os.Stat(filepath.Join(links, entry.Name())); err != nil {
			t.Errorf("link %s leads nowhere: %v", entry.Name(), err)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("links are %q, want %q", got, want)
	}
}

func TestLinksFollowTheDriver(t *testing.T) {
	root := install(t, "usr/lib64/libcuda.so.1", "usr/lib64/libcuda.so.570", "usr/lib64/libnvidia-ml.so.1")
	links := filepath.Join(root, "links")
	tools := NewTools(root, links)
	look := func() {
		if _, err := tools.Environment(); err != nil {
			t.Fatal(err)
		}
	}
	look()
	must(t, os.Rename(filepath.Join(root, "usr/lib64/libcuda.so.570"), filepath.Join(root, "usr/lib64/libcuda.so.580")))
	must(t, errors.Join(os.Remove(filepath.Join(links, "libcuda.so.1")), os.Symlink("/elsewhere", filepath.Join(links, "libcuda.so.1"))))
	look()
	expectLinks(t, links, "libcuda.so.1", "libcuda.so.580", "libnvidia-ml.so.1")
}

func TestADriverRootWithoutADriver(t *testing.T) {
	if _, err := NewTools(t.TempDir(), t.TempDir()).Environment(); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "install the NVIDIA driver there") {
		t.Errorf("got %v", err)
	}
}

func TestSaid(t *testing.T) {
	for text, want := range map[string]string{
		"":                     "",
		"one\n\ntwo \n \n":     "one; two",
		"one\ntwo\nthree":      "two; three",
		"\x1b[31mred\x00\n":    "[31mred",
		strings.Repeat("x", 9): "xxxxxxxxx",
	} {
		if got := Said(text, 2); got != want {
			t.Errorf("of %q: %q, want %q", text, got, want)
		}
	}
	if got := Said(strings.Repeat("é", 2*maxSaid), 2); len([]rune(got)) != maxSaid+3 || !strings.HasPrefix(got, "...é") {
		t.Errorf("a long line becomes %q", got)
	}
}

func TestOutputKeepsTheEnd(t *testing.T) {
	var output Output
	for range 3 {
		if n, err := output.Write([]byte(strings.Repeat("a", maxOutput-1) + "b")); n != maxOutput || err != nil {
			t.Fatal(n, err)
		}
	}
	if got := output.String(); len(got) != maxOutput || !strings.HasSuffix(got, "ab") {
		t.Errorf("kept %d bytes", len(got))
	}
}

// Debian's alternatives are absolute links, which lead out of a root that is mounted
// elsewhere.
func TestAbsoluteLinksAreOfTheRoot(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"usr/bin", "etc/alternatives", "usr/lib/nvidia/current", "opt"} {
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	file := filepath.Join(root, "usr/lib/nvidia/current/nvidia-smi")
	if err := errors.Join(
		os.WriteFile(file, nil, 0o755),
		os.Symlink("/etc/alternatives/nvidia-smi", filepath.Join(root, "usr/bin/nvidia-smi")),
		os.Symlink("/usr/lib/nvidia/current/nvidia-smi", filepath.Join(root, "etc/alternatives/nvidia-smi")),
		os.Symlink("../usr/lib/nvidia", filepath.Join(root, "opt/bin")),
		os.Symlink("../nvidia/current/nvidia-smi", filepath.Join(root, "usr/lib/nvidia/relative")),
		os.Symlink("../../bin/sh", filepath.Join(root, "usr/bin/dangling")),
		os.Symlink("/bin/sh", filepath.Join(root, "usr/bin/shell")), // which is there, but not in the root
		os.Symlink("/usr/bin/loop", filepath.Join(root, "usr/bin/loop")),
	); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"nvidia-smi": file, "relative": filepath.Join(root, "opt/bin/relative"), "dangling": "", "shell": "", "loop": ""} {
		if got, found := Program(root, name); got != want || found != (want != "") {
			t.Errorf("%s: got %q, %v, want %q", name, got, found, want)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
