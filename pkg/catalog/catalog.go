// Package catalog owns facts about NVIDIA boards that are the same on every
// machine: product names, PCI device IDs, memory as the driver reports it, MIG
// geometry, and which boards the machine types of EC2 have. The facts are
// embedded data files with the source beside each number; the package offers
// types and pure lookups over them. It never reads hardware, never guesses a
// number that was not captured, and never overrides what NVML reports of a board
// that is there.
package catalog

import (
	"embed"
	"fmt"
	"slices"
	"sync"

	"sigs.k8s.io/yaml"
)

//go:embed boards.yaml geometries.yaml instances.yaml
var data embed.FS

// tables are the decoded data files, indexed.
type tables struct {
	boards     []Board
	geometries []Geometry
	families   []family
	without    []without
	instances  map[string]Instance
}

var load = sync.OnceValue(func() tables {
	t, err := decode(data.ReadFile)
	if err != nil {
		// The files are part of the binary and a test decodes them: no
		// input that a user or a node can give leads here.
		panic(err)
	}
	return t
})

// decode reads and checks the data files.
func decode(read func(string) ([]byte, error)) (tables, error) {
	var geometries struct {
		Geometries []Geometry `json:"geometries"`
	}
	if err := decodeFile(read, "geometries.yaml", &geometries); err != nil {
		return tables{}, err
	}
	var boards struct {
		Boards []Board `json:"boards"`
	}
	if err := decodeFile(read, "boards.yaml", &boards); err != nil {
		return tables{}, err
	}
	t := tables{boards: boards.Boards, geometries: geometries.Geometries}
	for i := range t.geometries {
		if err := t.geometries[i].validate(); err != nil {
			return tables{}, err
		}
	}
	if err := t.link(); err != nil {
		return tables{}, err
	}
	var file instanceFile
	if err := decodeFile(read, "instances.yaml", &file); err != nil {
		return tables{}, err
	}
	var err error
	t.families, t.without = file.Families, file.Without
	t.instances, err = t.readInstances(file)
	return t, err
}

func decodeFile(read func(string) ([]byte, error), name string, into any) error {
	raw, err := read(name)
	if err != nil {
		return fmt.Errorf("read catalogue file %s: %w", name, err)
	}
	if err := yaml.UnmarshalStrict(raw, into); err != nil {
		return fmt.Errorf("decode catalogue file %s: %w", name, err)
	}
	return nil
}

// link points each board at its geometry and refuses ambiguous lookups.
func (t tables) link() error {
	names := map[string]bool{}
	ids := map[PCIDeviceID]string{}
	for i := range t.boards {
		b := &t.boards[i]
		if err := b.validate(); err != nil {
			return err
		}
		if names[b.Name] {
			return fmt.Errorf("catalogue lists board %q twice", b.Name)
		}
		names[b.Name] = true
		if other, taken := ids[b.PCIDeviceID]; taken {
			return fmt.Errorf("catalogue gives PCI device ID %s to both %q and %q", b.PCIDeviceID, other, b.Name)
		}
		ids[b.PCIDeviceID] = b.Name
		if b.Geometry == "" {
			continue
		}
		j := slices.IndexFunc(t.geometries, func(g Geometry) bool { return g.Name == b.Geometry })
		if j < 0 {
			return fmt.Errorf("catalogue board %q names MIG geometry %q, which does not exist", b.Name, b.Geometry)
		}
		b.MIG = &t.geometries[j]
	}
	return nil
}

// Boards returns every board of the catalogue. Like all results of this package, they share the
// tables: callers do not change them.
func Boards() []Board { return load().boards }

// BoardByName returns the board that the catalogue lists under name.
func BoardByName(name string) (Board, bool) {
	return find(func(b Board) bool { return b.Name == name })
}

// BoardByProductName returns a board that NVML names name. Boards that share
// their product name share everything else that the catalogue records.
func BoardByProductName(name string) (Board, bool) {
	return find(func(b Board) bool { return b.ProductName == name })
}

func find(match func(Board) bool) (Board, bool) {
	i := slices.IndexFunc(load().boards, match)
	if i < 0 {
		return Board{}, false
	}
	return load().boards[i], true
}

// Geometries returns every complete MIG geometry of the catalogue.
func Geometries() []Geometry { return load().geometries }
