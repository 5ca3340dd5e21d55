package table

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/mica-gpu/mica/test/nvmlsim/wire"
)

// Module is the module whose header the shim follows.
const Module = "github.com/NVIDIA/go-nvml"

// Header is what nvml.h declares.
type Header struct {
	// Module is the version of the go-nvml module, Path the header's file.
	Module, Path string
	// Functions are the declared functions by name, and the older names that
	// the header turns into newer ones by macros.
	Functions map[string]Prototype
}

// Prototype is the declaration of one function.
type Prototype struct {
	Return string
	// Parameters are the C types, spaces normalised: "unsigned int *".
	Parameters []string
}

// Names lists the functions in order.
func (h *Header) Names() []string { return slices.Sorted(maps.Keys(h.Functions)) }

// ReadHeader reads the header of the go-nvml module that the build uses.
func ReadHeader() (*Header, error) {
	raw, err := exec.Command("go", "list", "-m", "-json", Module).Output()
	if err != nil {
		return nil, fmt.Errorf("find the module %s with go list: %w", Module, err)
	}
	var module struct{ Version, Dir string }
	if err := json.Unmarshal(raw, &module); err != nil {
		return nil, fmt.Errorf("read the answer of go list: %w", err)
	}
	path := filepath.Join(module.Dir, "pkg", "nvml", "nvml.h")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the NVML header: %w", err)
	}
	h, err := parseHeader(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	h.Module, h.Path = module.Version, path
	return h, nil
}

var (
	comment     = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	declaration = regexp.MustCompile(`(?s)\b(nvmlReturn_t\s+DECLDIR|const\s+DECLDIR\s+char\s*\*)\s*(nvml\w+)\s*\(([^)]*)\)\s*;`)
	declarator  = regexp.MustCompile(`DECLDIR`)
	alias       = regexp.MustCompile(`(?m)^\s*#define\s+(nvml\w+)\s+(nvml\w+)\s*$`)
	spaces      = regexp.MustCompile(`\s+`)
)

func parseHeader(text string) (*Header, error) {
	text = comment.ReplaceAllString(text, "")
	h := &Header{Functions: map[string]Prototype{}}
	found := declaration.FindAllStringSubmatch(text, -1)
	for _, m := range found {
		p := Prototype{Return: strings.Fields(m[1])[0]}
		if strings.TrimSpace(m[3]) != "void" {
			for _, parameter := range strings.Split(m[3], ",") {
				p.Parameters = append(p.Parameters, parameterType(parameter))
			}
		}
		h.Functions[m[2]] = p
	}
	// DECLDIR itself is defined four times before it is used.
	const definitions = 4
	if marked := len(declarator.FindAllString(text, -1)) - definitions; marked != len(found) || marked == 0 {
		return nil, fmt.Errorf("%d functions are declared but %d of them were understood", marked, len(found))
	}
	for _, m := range alias.FindAllStringSubmatch(text, -1) {
		target, isFunction := h.Functions[m[2]]
		if _, declared := h.Functions[m[1]]; isFunction && !declared {
			h.Functions[m[1]] = target
		}
	}
	return h, nil
}

var parameterName = regexp.MustCompile(`\w+$`)

func parameterType(parameter string) string {
	parameter = spaces.ReplaceAllString(strings.TrimSpace(parameter), " ")
	t := strings.TrimSpace(parameterName.ReplaceAllString(parameter, ""))
	return strings.ReplaceAll(strings.ReplaceAll(t, " *", "*"), "*", " *")
}

var handleTypes = []string{"nvmlDevice_t", "nvmlEventSet_t", "nvmlGpuInstance_t", "nvmlComputeInstance_t", "nvmlGpmSample_t"}

// check holds a signature of ours against the prototype.
func (p Prototype) check(f wire.Function) error {
	if len(p.Parameters) != len(f.Args) {
		return fmt.Errorf("%s travels with %d arguments but is declared with %d", f.Name, len(f.Args), len(p.Parameters))
	}
	for i, a := range f.Args {
		if !fits(a, p.Parameters[i]) {
			return fmt.Errorf("argument %d of %s is declared as %q, which %+v does not fit", i, f.Name, p.Parameters[i], a)
		}
	}
	return nil
}

func fits(a wire.Arg, declared string) bool {
	pointee, isPointer := strings.CutSuffix(declared, " *")
	isHandle := slices.Contains(handleTypes, declared)
	isStruct := strings.HasPrefix(pointee, "nvml")
	switch a.Kind {
	case wire.Handle:
		return isHandle
	case wire.U32:
		return !isPointer && !isHandle && !strings.Contains(declared, "long")
	case wire.U64:
		return declared == "unsigned long long"
	case wire.String:
		return declared == "const char *"
	case wire.In:
		return strings.TrimPrefix(pointee, "const ") == structName(a.Type)
	case wire.Versioned:
		return isPointer && isStruct
	}
	if !isPointer || strings.HasPrefix(pointee, "const ") {
		return false
	}
	switch a.Type {
	case reflect.TypeFor[byte]():
		return pointee == "char"
	case reflect.TypeFor[uint32]():
		return pointee == "unsigned int" || pointee == "int" || isStruct && !slices.Contains(handleTypes, pointee)
	case reflect.TypeFor[uint64]():
		return pointee == "unsigned long long"
	case reflect.TypeFor[uint]():
		return pointee == "unsigned long"
	case reflect.TypeFor[wire.HandleWord]():
		return slices.Contains(handleTypes, pointee)
	}
	return pointee == structName(a.Type)
}

// structName is the C name of a go-nvml struct.
func structName(t reflect.Type) string {
	name := t.Name()
	return "nvml" + strings.ToUpper(name[:1]) + name[1:] + "_t"
}
