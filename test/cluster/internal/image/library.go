package image

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// libraryDirs are where glibc's loader looks without configuration: Debian's,
// then Fedora's places.
var libraryDirs = []string{
	"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
	"/usr/lib64", "/lib64", "/usr/lib", "/lib",
}

// opened are libraries that a dynamic binary may open at run time: NVIDIA's
// libraries name them, whatever the binary itself does. glibc 2.34 made most
// of them empty, but the names are still asked for.
var opened = []string{"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"}

// reference is a program of every machine that has glibc: it names the loader.
const reference = "/bin/mount"

// dependencies returns the loader and the libraries that the binaries need,
// each by the path it has on this machine. With glibc they include what any
// dynamic program needs.
func dependencies(binaries []string, glibc bool) ([]string, error) {
	found := map[string]bool{}
	if glibc {
		loader, _, err := dynamic(reference)
		if err != nil {
			return nil, err
		}
		if err := need(loader, nil, found); err != nil {
			return nil, err
		}
	}
	for _, binary := range binaries {
		loader, needed, err := dynamic(binary)
		if err != nil {
			return nil, err
		}
		if err := need(loader, needed, found); err != nil {
			return nil, fmt.Errorf("finding what %s needs: %w", binary, err)
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// need adds a dynamic program's loader and libraries. Without a loader the
// program is static and needs nothing.
func need(loader string, libraries []string, found map[string]bool) error {
	if loader == "" {
		return nil
	}
	found[loader] = true
	for _, library := range append(libraries, opened...) {
		if err := collect(library, found); err != nil {
			return err
		}
	}
	return nil
}

// collect adds a library and all that it needs.
func collect(library string, found map[string]bool) error {
	path, err := locate(library)
	if err != nil || found[path] {
		return err
	}
	found[path] = true
	_, needed, err := dynamic(path)
	if err != nil {
		return err
	}
	for _, next := range needed {
		if err := collect(next, found); err != nil {
			return err
		}
	}
	return nil
}

func locate(library string) (string, error) {
	for _, dir := range libraryDirs {
		path := filepath.Join(dir, library)
		_, err := os.Stat(path)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("looking for %s: %w", library, err)
		}
	}
	return "", fmt.Errorf("%s is in none of the loader's directories: install the glibc package that has it (Debian: libc6)", library)
}

// dynamic returns the loader that a file asks for and the libraries that it
// names. A static binary has neither.
func dynamic(path string) (loader string, needed []string, err error) {
	file, err := elf.Open(path)
	if err != nil {
		return "", nil, fmt.Errorf("reading %s as an ELF file: %w", path, err)
	}
	defer file.Close()
	needed, err = file.ImportedLibraries()
	if err != nil {
		return "", nil, fmt.Errorf("reading the libraries that %s names: %w", path, err)
	}
	for _, segment := range file.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		name := make([]byte, segment.Filesz)
		if _, err := segment.ReadAt(name, 0); err != nil {
			return "", nil, fmt.Errorf("reading the loader that %s names: %w", path, err)
		}
		for len(name) > 0 && name[len(name)-1] == 0 {
			name = name[:len(name)-1]
		}
		loader = string(name)
	}
	return loader, needed, nil
}
