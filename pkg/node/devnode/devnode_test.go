package devnode

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func newHost(t *testing.T) Host {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"dev/char", "dev/nvidia-caps"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return Host(root)
}

func TestLink(t *testing.T) {
	for name, tc := range map[string]struct{ before, after string }{
		"none":                      {"", "/dev/nvidia0"},
		"of this package":           {"/dev/nvidia0", "/dev/nvidia0"},
		"of udev, which is left":    {"../nvidia0", "../nvidia0"},
		"of a driver that has gone": {"/run/nvidia/driver/dev/nvidia0", "/dev/nvidia0"},
	} {
		t.Run(name, func(t *testing.T) {
			host := newHost(t)
			link := filepath.Join(string(host), "dev/char/195:0")
			if tc.before != "" {
				if err := os.Symlink(tc.before, link); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				if err := host.Link("/dev/nvidia0", 195, 0); err != nil {
					t.Fatal(err)
				}
				if target, err := os.Readlink(link); err != nil || target != tc.after {
					t.Errorf("got a link to %q (%v), want %q", target, err, tc.after)
				}
			}
			if entries, err := os.ReadDir(filepath.Dir(link)); err != nil || len(entries) != 1 {
				t.Errorf("got %v (%v) in /dev/char", entries, err)
			}
		})
	}
}

func TestMake(t *testing.T) {
	host := newHost(t)
	const path = "/dev/nvidia-caps/nvidia-cap12"
	stat := func() (s unix.Stat_t) {
		if err := unix.Lstat(filepath.Join(string(host), path), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	var first unix.Stat_t
	for i := range 2 {
		if err := host.Make(path, 511, 12, 0o444); err != nil {
			t.Fatal(err)
		}
		made := stat()
		if i == 0 {
			first = made
		}
		if made.Ino != first.Ino || made.Mode != unix.S_IFCHR|0o444 || made.Rdev != unix.Mkdev(511, 12) {
			t.Errorf("got %+v after %+v", made, first)
		}
	}
	// The driver was loaded anew and has another major number.
	if err := host.Make(path, 510, 12, 0o444); err != nil {
		t.Fatal(err)
	}
	if made := stat(); made.Rdev != unix.Mkdev(510, 12) {
		t.Errorf("got %d:%d", unix.Major(made.Rdev), unix.Minor(made.Rdev))
	}
}

func TestNothingIsMadeWithoutAHost(t *testing.T) {
	if err := Host("").Link("/dev/nvidia0", 195, 0); err != nil {
		t.Error(err)
	}
	if err := Host("").Make("/dev/nvidia-caps/nvidia-cap12", 511, 12, 0o444); err != nil {
		t.Error(err)
	}
	if err := Host(t.TempDir()).Link("/dev/nvidia0", 195, 0); err == nil {
		t.Error("a link was made in a /dev that has no char")
	}
}
