// Package nodes owns the descriptions of machines that the simulator can stand
// in for without being given a file: embedded YAML files, named after the EC2
// instance types that they describe. It never builds or runs a machine.
package nodes

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

//go:embed *.yaml
var files embed.FS

// Names lists the ready-made machines, sorted.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		// The files are part of the binary.
		panic(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	slices.Sort(names)
	return names
}

// Load returns the description of a ready-made machine.
func Load(name string) (model.File, error) {
	raw, err := files.ReadFile(name + ".yaml")
	if err != nil {
		return model.File{}, fmt.Errorf("there is no ready-made machine %q; there are %s", name, strings.Join(Names(), ", "))
	}
	f, err := model.ParseFile(raw)
	if err != nil {
		return model.File{}, fmt.Errorf("ready-made machine %q: %w", name, err)
	}
	return f, nil
}
