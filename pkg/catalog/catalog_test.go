package catalog

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestDataIsComplete(t *testing.T) {
	if got := len(Geometries()); got != 9 {
		t.Errorf("the catalogue has %d geometries, want 9", got)
	}
	for _, b := range Boards() {
		if found, ok := BoardByProductName(b.ProductName); !ok || found.Name != b.Name {
			t.Errorf("product name %q finds %q, want %q", b.ProductName, found.Name, b.Name)
		}
		if found, ok := BoardByName(b.Name); !ok || found.PCIDeviceID != b.PCIDeviceID {
			t.Errorf("name %q finds %q", b.Name, found.Name)
		}
		for _, g := range Geometries() {
			if of := b.MIG != nil && b.MIG.Name == g.Name; of != slices.Contains(g.PCIDeviceIDs, b.PCIDeviceID) {
				t.Errorf("board %q has geometry %q, and its PCI device ID says otherwise about %q", b.Name, b.Geometry, g.Name)
			}
		}
	}
}

func TestLookupsOfNothing(t *testing.T) {
	if _, found := BoardByName("no-such-board"); found {
		t.Error("a board that is not listed was found by name")
	}
	if t4, _ := BoardByName("t4-16gb"); t4.MIG != nil {
		t.Error("a T4 has a MIG geometry")
	}
	h100, _ := BoardByName("h100-sxm-80gb")
	if _, found := h100.MIG.ProfileByName("1g.5gb"); found {
		t.Error("an H100 has the profile of an A100")
	}
}

// TestSameIDsMeanOtherProfiles holds the trap that profile IDs are per board.
func TestSameIDsMeanOtherProfiles(t *testing.T) {
	for _, test := range []struct {
		board string
		id    int
		want  string
	}{
		{"a100-sxm-40gb", 14, "2g.10gb"},
		{"a30-24gb", 14, "1g.6gb"},
		{"rtx-pro-6000-server-96gb", 14, "1g.24gb"},
		{"a100-sxm-40gb", 5, "4g.20gb"},
		{"a30-24gb", 5, "2g.12gb"},
		{"b200-sxm-180gb", 19, "1g.23gb"},
	} {
		b, _ := BoardByName(test.board)
		if p, _ := b.MIG.ProfileByID(test.id); p.Name != test.want {
			t.Errorf("ID %d on %s is %q, want %q", test.id, test.board, p.Name, test.want)
		}
	}
}

// TestProfileNamesFollowTheTotal computes the GB in each name from the board's
// total, as NVIDIA's tools do: the fraction in eighths, rounded up, of the total
// in whole GiB.
func TestProfileNamesFollowTheTotal(t *testing.T) {
	for _, b := range Boards() {
		if b.MIG == nil {
			continue
		}
		for _, p := range b.MIG.Profiles {
			eighths := math.Ceil(float64(p.MemoryMiB) / float64(b.MemoryMiB) * 8)
			gb := math.Round(eighths / 8 * math.Ceil(float64(b.MemoryMiB)/1024))
			if want := fmt.Sprintf("%dg.%dgb", p.Slices, int(gb)); p.Name != want && !strings.HasPrefix(p.Name, want+"+") && !strings.HasPrefix(p.Name, want+"-") {
				t.Errorf("profile %s of %s should be named %s", p.Name, b.Name, want)
			}
		}
	}
}

func TestUnverifiedFieldsAreMarked(t *testing.T) {
	for _, b := range Boards() {
		if marked := slices.Contains(b.Unverified, "brand"); marked != slices.Contains([]string{"rtx-pro-6000-server-96gb", "p4-8gb"}, b.Name) {
			t.Errorf("the brand of %s is marked unverified: %t", b.Name, marked)
		}
	}
	for _, g := range Geometries() {
		for _, p := range g.Profiles {
			if marked := slices.Contains(p.Unverified, "memoryMiB"); marked != (g.Name == "h200-141gb" && p.Slices == 7) {
				t.Errorf("memory of %s on %s is marked unverified: %t", p.Name, g.Name, marked)
			}
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, test := range []struct {
		name, file, old, new, want string
	}{
		{"an unknown field", "boards.yaml", "memoryMiB: 15360", "memoryGiB: 15", "memoryGiB"},
		{"a PCI device ID that YAML reads as a number", "boards.yaml", `"2330"`, `2330`, "quote"},
		{"a PCI device ID of five digits", "boards.yaml", `"2330"`, `"02330"`, "four hexadecimal digits"},
		{"the same name twice", "boards.yaml", "name: l4-24gb", "name: t4-16gb", "twice"},
		{"the same PCI device ID twice", "boards.yaml", `"27b8"`, `"1eb8"`, "1eb8"},
		{"an unknown geometry", "boards.yaml", "geometry: a30-24gb", "geometry: a30", "does not exist"},
		{"no memory", "boards.yaml", "memoryMiB: 15360", "memoryMiB: 0", "memory"},
		{"no source", "boards.yaml", "productName: Tesla T4", `productName: ""`, "productName"},
		{"a compute capability in words", "boards.yaml", `"7.5"`, `seven`, "major.minor"},
		{"the same profile ID twice", "geometries.yaml", "id: 20,", "id: 19,", "repeats"},
		{"a placement past the end", "geometries.yaml", "starts: [0, 4]", "starts: [0, 5]", "leave"},
		{"placements out of order", "geometries.yaml", "starts: [0, 4]", "starts: [4, 0]", "order"},
		{"a profile without memory", "geometries.yaml", "memoryMiB: 4864", "memoryMiB: 0", "lacks"},
	} {
		t.Run(test.name, func(t *testing.T) { checkRefused(t, test.file, test.old, test.new, test.want) })
	}
}

// checkRefused decodes the data files with one changed.
func checkRefused(t *testing.T, file, old, changed, want string) {
	t.Helper()
	replaced := false
	_, err := decode(func(name string) ([]byte, error) {
		raw, err := os.ReadFile(name)
		if err != nil || name != file {
			return raw, err
		}
		replaced = strings.Contains(string(raw), old)
		return []byte(strings.Replace(string(raw), old, changed, 1)), nil
	})
	if !replaced {
		t.Fatalf("%s does not contain %q", file, old)
	}
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want one that mentions %q", err, want)
	}
}
