package cdi

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/apimachinery/pkg/types"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/test/fixture"
)

const driverName = "gpu.nvidia.com"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, path, driver string) *Directory {
	t.Helper()
	directory, err := NewDirectory(path, driver)
	must(t, err)
	return directory
}

func claim(name string) Claim {
	return Claim{UID: types.UID("uid-" + name), NamespacedName: types.NamespacedName{Namespace: "team-a", Name: name}}
}

func env(variables ...string) cdispec.ContainerEdits { return cdispec.ContainerEdits{Env: variables} }

func write(t *testing.T, directory *Directory, c Claim, devices ...Device) {
	t.Helper()
	must(t, directory.Write(c, env("COMMON=1"), devices))
}

func files(t *testing.T, path string) []string {
	t.Helper()
	entries, err := os.ReadDir(path)
	must(t, err)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func TestOpeningLeavesNothingInTheDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "not/there/yet")
	for _, before := range []string{"", probeFile} { // a process that was killed has left it
		if before != "" {
			must(t, os.WriteFile(filepath.Join(path, before), nil, 0o600))
		}
		open(t, path, driverName)
		if names := files(t, path); len(names) > 0 {
			t.Errorf("found %q", names)
		}
	}
}

func TestDirectoriesThatCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for name, tc := range map[string]struct {
		path, driver string
		want         []string
	}{
		"a file":           {file, driverName, []string{"create CDI directory", file, "choose a writable --cdi-root"}},
		"below a file":     {file + "/cdi", driverName, []string{"create CDI directory", file, "choose a writable --cdi-root"}},
		"not writable":     {"/proc", driverName, []string{"CDI directory /proc cannot be written", "choose a writable --cdi-root"}},
		"an impossible ID": {t.TempDir(), "no vendor", []string{`driver name "no vendor" cannot be a CDI vendor`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewDirectory(tc.path, tc.driver)
			fixture.Sentence(t, err, tc.want...)
		})
	}
}

// What is written is what a container runtime reads: containerd and CRI-O use
// the same library.
func TestARuntimeInjectsWhatIsWritten(t *testing.T) {
	path := t.TempDir()
	directory := open(t, path, driverName)
	c := claim("one")
	write(t, directory, c, Device{Name: "gpu-0", Edits: env("FIRST=1")}, Device{Name: "gpu-1", Edits: env("SECOND=1")})

	cache, err := cdilib.NewCache(cdilib.WithSpecDirs(path))
	must(t, err)
	for name, tc := range map[string]struct {
		devices []string
		want    []string
	}{
		"one device":  {[]string{"gpu-1"}, []string{"COMMON=1", "SECOND=1"}},
		"two devices": {[]string{"gpu-0", "gpu-1"}, []string{"COMMON=1", "FIRST=1", "SECOND=1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var ids []string
			for _, device := range tc.devices {
				ids = append(ids, directory.DeviceID(c.UID, device))
			}
			container := &oci.Spec{}
			if missing, err := cache.InjectDevices(container, ids...); err != nil {
				t.Fatalf("%v, missing %q", err, missing)
			}
			got := slices.Clone(container.Process.Env)
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("got environment %q, want %q", got, tc.want)
			}
		})
	}
	if problems := cache.GetErrors(); len(problems) > 0 {
		t.Errorf("the library complains: %v", problems)
	}
}

func TestTheFileIsAValidSpecification(t *testing.T) {
	path := t.TempDir()
	directory := open(t, path, driverName)
	write(t, directory, claim("one"), Device{Name: "gpu-7", Edits: env("OLD=1")}) // is replaced
	write(t, directory, claim("one"), Device{Name: "gpu-0", Edits: env("FIRST=1")})
	names := files(t, path)
	if len(names) != 1 || !strings.HasPrefix(names[0], "mica-") {
		t.Fatalf("found %q, want one file whose name begins with mica-", names)
	}
	file := filepath.Join(path, names[0])
	spec, err := cdilib.ReadSpec(file, 0)
	must(t, err)
	if spec.Kind != "gpu.nvidia.com/claim" || len(spec.Devices) != 1 || spec.GetDevice("uid-one-gpu-0") == nil {
		t.Errorf("got kind %s and devices %v", spec.Kind, spec.Devices)
	}
	info, err := os.Stat(file)
	must(t, err)
	if info.Mode().Perm() != 0o644 {
		t.Errorf("got mode %s, want one that the runtime can read", info.Mode())
	}
}

// SELinux keeps containers from what has the type of a file in /var/run/cdi.
func TestContainersMayReadAClaimsFiles(t *testing.T) {
	directory := open(t, t.TempDir(), driverName)
	shared := map[string]bool{}
	directory.share = func(paths ...string) error {
		for _, path := range paths {
			if _, err := os.Stat(path); err != nil {
				t.Error(err)
			}
			shared[path] = true
		}
		return nil
	}
	one := claim("one")
	write(t, directory, one, Device{Name: "gpu-0", Edits: env("A=1"), Files: []File{{Name: "metadata.json", ContainerPath: "/run/metadata.json", Content: []byte("{}")}}})
	dir := directory.files(one.UID)
	if want := map[string]bool{dir: true, filepath.Join(dir, "metadata.json"): true}; !maps.Equal(shared, want) {
		t.Errorf("containers may read %v, want %v", shared, want)
	}
}

func TestRemove(t *testing.T) {
	path := t.TempDir()
	directory := open(t, path, driverName)
	one, two := claim("one"), claim("two")
	write(t, directory, one, Device{Name: "gpu-0", Edits: env("FIRST=1")})
	write(t, directory, two, Device{Name: "gpu-1", Edits: env("SECOND=1")})
	must(t, os.WriteFile(directory.file(one.UID)+tempSuffix, []byte("half"), 0o600))
	for range 2 { // what is gone is no error
		must(t, directory.Remove(one.UID))
	}
	if directory.Has(one.UID) || !directory.Has(two.UID) {
		t.Errorf("has one: %t, has two: %t; want only two", directory.Has(one.UID), directory.Has(two.UID))
	}
	if names := files(t, path); len(names) != 1 {
		t.Errorf("found %q, want the other claim's file alone", names)
	}
}

func TestRemoveSaysWhatIsInTheWay(t *testing.T) {
	directory := open(t, t.TempDir(), driverName)
	must(t, os.MkdirAll(filepath.Join(directory.file("uid-one"), "inside"), 0o700))
	fixture.Sentence(t, directory.Remove("uid-one"), "remove the CDI specification")
}

// The directory is shared with other vendors and with other drivers of ours.
func TestClaimsAreOurs(t *testing.T) {
	path := t.TempDir()
	directory := open(t, path, driverName)
	write(t, directory, claim("one"), Device{Name: "gpu-0", Edits: env("FIRST=1")})
	write(t, directory, claim("two"), Device{Name: "gpu-1", Edits: env("SECOND=1")})
	write(t, open(t, path, "gpu.nvidia.com-test"), claim("three"), Device{Name: "gpu-2", Edits: env("THIRD=1")})
	write(t, open(t, path, "gpu.example.com"), claim("four"), Device{Name: "gpu-3", Edits: env("FOURTH=1")})
	for name, content := range map[string]string{
		"nvidia.yaml":                           "cdiVersion: 0.5.0\n",
		"mica-notes.json":                       "{}",
		"mica-gpu.nvidia.com_.json":             "{}",
		"mica-gpu.nvidia.com_uid-five.yaml":     "{}",
		"mica-gpu.nvidia.com_uid-damaged.json":  "{ not",
		"mica-gpu.nvidia.com_uid-half.json.tmp": "{ half",
	} {
		must(t, os.WriteFile(filepath.Join(path, name), []byte(content), 0o600))
	}
	uids, err := directory.Claims()
	must(t, err)
	slices.Sort(uids)
	var claims []Claim
	for _, uid := range uids {
		claim, err := directory.Read(uid)
		must(t, err)
		claims = append(claims, claim)
	}
	want := []Claim{{UID: "uid-damaged"}, {UID: "uid-half"}, claim("one"), claim("two")}
	if !slices.Equal(claims, want) {
		t.Errorf("got %v, want %v", claims, want)
	}
}

func TestTheRecordIsFoundAgain(t *testing.T) {
	path := t.TempDir()
	directory := open(t, path, driverName)
	c := claim("one")
	c.Record = `{"of":"any kind","with":"\"quotes\" <and> more"}` + "\n"
	write(t, directory, c, Device{Name: "gpu-0", Edits: env("FIRST=1")})
	if got, err := directory.Read(c.UID); err != nil || got != c {
		t.Errorf("got %+v, %v, want %+v", got, err, c)
	}
	if _, err := cdilib.ReadSpec(directory.file(c.UID), 0); err != nil {
		t.Errorf("the runtime refuses the file: %v", err)
	}
}

// Two links that lead to each other hide nothing known.
func TestASpecificationThatCannotBeRead(t *testing.T) {
	directory := open(t, t.TempDir(), driverName)
	one, two := directory.file("uid-one"), directory.file("uid-two")
	must(t, errors.Join(os.Symlink(one, two), os.Symlink(two, one), os.Mkdir(directory.file("uid-three"), 0o700)))
	_, err := directory.Read("uid-one")
	fixture.Sentence(t, err, "read the CDI specification")
	if got, err := directory.Read("uid-three"); err != nil || got != (Claim{UID: "uid-three"}) {
		t.Errorf("got %+v, %v of a directory", got, err)
	}
}

func TestOwns(t *testing.T) {
	directory := open(t, t.TempDir(), driverName)
	if uid, ours := directory.Owns(directory.file("uid-one")); !ours || uid != "uid-one" {
		t.Errorf("got %q, %t for the file of uid-one", uid, ours)
	}
	for _, path := range []string{"nvidia.yaml", "mica-gpu.nvidia.com_.json", "mica-gpu.nvidia.com_uid-one.json.tmp", "mica-other.example.com_uid-one.json"} {
		if _, ours := directory.Owns(filepath.Join(directory.Path(), path)); ours {
			t.Errorf("%s is taken for ours", path)
		}
	}
}

// The source of a bind mount can be removed while it is mounted, as by a cleaner
// of /run on the host: what is left is there and takes no file.
func TestAMountWhoseSourceIsGone(t *testing.T) {
	source, path := filepath.Join(t.TempDir(), "source"), t.TempDir()
	must(t, os.Mkdir(source, 0o700))
	if err := syscall.Mount(source, path, "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("mounting is not allowed here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(path, 0); err != nil {
			t.Error(err)
		}
	})
	directory := open(t, path, driverName)
	if directory.Gone() {
		t.Error("it is gone before it is")
	}
	must(t, os.Remove(source))
	if !directory.Gone() {
		t.Error("its removal goes unnoticed")
	}
	fixture.Sentence(t, directory.Make(), "CDI directory "+path+" cannot be written", "no such file or directory")
}

func TestGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cdi")
	directory := open(t, path, driverName)
	must(t, os.Remove(path))
	if !directory.Gone() {
		t.Error("it goes unnoticed")
	}
	if err := directory.Make(); err != nil || directory.Gone() {
		t.Errorf("got %v; gone: %t", err, directory.Gone())
	}
}

// What the kernel reports of the directory itself is compared with its path.
func TestThePathIsClean(t *testing.T) {
	path := t.TempDir()
	for _, spelled := range []string{path + "/", path + "//", path + "/./"} {
		if got := open(t, spelled, driverName).Path(); got != path {
			t.Errorf("got %s for %s, want %s", got, spelled, path)
		}
	}
}

func TestClaimsOfADirectoryThatIsGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cdi")
	directory := open(t, path, driverName)
	must(t, os.Remove(path))
	_, err := directory.Claims()
	fixture.Sentence(t, err, "list CDI directory")
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("got %v, want %v", err, fs.ErrNotExist)
	}
	if err := directory.Write(claim("one"), env("COMMON=1"), nil); err == nil {
		t.Error("wrote into a directory that is gone")
	}
}
