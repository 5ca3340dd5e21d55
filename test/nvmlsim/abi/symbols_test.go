package abi_test

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/test/nvmlsim/shim/table"
	"github.com/mica-gpu/mica/test/nvmlsim/wire"
)

func readHeader(t *testing.T) *table.Header {
	t.Helper()
	header, err := table.ReadHeader()
	if err != nil {
		t.Fatal(err)
	}
	return header
}

func TestTableIsGeneratedFromTheHeader(t *testing.T) {
	t.Parallel()
	want, err := table.Render(readHeader(t), wire.Functions(), wire.Extensions())
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../shim/zz_generated.functions.inc")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("the shim's table is not what the header and wire.Functions give: run go generate ./test/nvmlsim/shim/table")
	}
}

// A client that calls a symbol that is not there dies with a symbol lookup
// error, so the library has every one that the header declares.
func TestLibraryExportsEveryFunction(t *testing.T) {
	t.Parallel()
	file, err := elf.Open(libraryPath())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var exported []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			exported = append(exported, s.Name)
		}
	}
	slices.Sort(exported)
	declared := readHeader(t).Names()
	if len(declared) < 400 {
		t.Errorf("the header declares %d functions, fewer than the pinned version's", len(declared))
	}
	for _, f := range wire.Extensions() {
		declared = append(declared, f.Name)
	}
	slices.Sort(declared)
	if !slices.Equal(exported, declared) {
		for _, name := range declared {
			if !slices.Contains(exported, name) {
				t.Errorf("the header declares %s, the library does not export it", name)
			}
		}
		for _, name := range exported {
			if !slices.Contains(declared, name) {
				t.Errorf("the library exports %s, the header does not declare it", name)
			}
		}
	}
	if soname, err := file.DynString(elf.DT_SONAME); err != nil || !slices.Equal(soname, []string{"libnvidia-ml.so.1"}) {
		t.Errorf("the library's soname is %v (%v)", soname, err)
	}
	if needed, err := file.DynString(elf.DT_NEEDED); err != nil || !slices.Equal(needed, []string{"libc.so.6"}) {
		t.Errorf("the library needs %v (%v), want the C library alone", needed, err)
	}
}

// The C compiler reports whether the sizes in the table are those of the header.
func TestStructsHaveTheHeadersLayout(t *testing.T) {
	t.Parallel()
	header := readHeader(t)
	var source strings.Builder
	source.WriteString("#define NVML_NO_UNVERSIONED_FUNC_DEFS 1\n#include <stddef.h>\n#include \"nvml.h\"\n")
	structs := 0
	for _, f := range wire.Functions() {
		for i, a := range f.Args {
			declared := header.Functions[f.Name].Parameters
			if !a.IsMemory() {
				continue
			}
			structs++
			pointee := strings.TrimSuffix(declared[i], " *")
			if a.Kind == wire.Versioned {
				fmt.Fprintf(&source, "_Static_assert(%#x == (sizeof(%s) | %dU << 24), \"%s\");\n", a.Version, structName(a.Type), a.Version>>24, f.Name)
				continue
			}
			fmt.Fprintf(&source, "_Static_assert(%d == sizeof(%s), \"argument %d of %s\");\n", a.Size, pointee, i, f.Name)
		}
	}
	if structs < 40 {
		t.Fatalf("only %d structs were compared", structs)
	}
	path := filepath.Join(t.TempDir(), "layout.c")
	if err := os.WriteFile(path, []byte(source.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := output(exec.Command("gcc", "-fsyntax-only", "-Wno-deprecated-declarations", "-I", filepath.Dir(header.Path), path))
	if err != nil {
		t.Errorf("the table's sizes differ from the header's: %v\n%s", err, out)
	}
}

func structName(t reflect.Type) string { return "nvml" + t.Name() + "_t" }
