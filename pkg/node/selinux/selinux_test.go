package selinux

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mica-gpu/mica/test/fixture"
)

func TestShare(t *testing.T) {
	for name, tc := range map[string]struct {
		active bool
		answer error
		calls  int
		want   []string // of the error's sentence
	}{
		"shares":                       {active: true, calls: 2},
		"no SELinux":                   {answer: unix.EPERM},
		"no such type":                 {active: true, answer: unix.EINVAL, calls: 2},
		"no labels on the file system": {active: true, answer: unix.ENOTSUP, calls: 2},
		"not allowed":                  {active: true, answer: unix.EPERM, calls: 1, want: []string{"give /a", "container_file_t", "privileged"}},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			err := share(tc.active, func(_, attribute string, value []byte, _ int) error {
				calls++
				if attribute != "security.selinux" || string(value) != "system_u:object_r:container_file_t:s0\x00" {
					t.Errorf("set %s to %q", attribute, value)
				}
				return tc.answer
			}, []string{"/a", "/b"})
			if calls != tc.calls {
				t.Errorf("it set %d labels, want %d", calls, tc.calls)
			}
			if tc.want != nil {
				fixture.Sentence(t, err, tc.want...)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// Without SELinux the kernel keeps the attribute as it is given.
func TestTheKernelTakesTheLabel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := share(true, unix.Lsetxattr, []string{path}); err != nil {
		t.Skip("this user may not set security attributes: ", err)
	}
	value := make([]byte, 100)
	n, err := unix.Lgetxattr(path, attribute, value)
	if err != nil {
		t.Skip("this file system keeps none: ", err)
	}
	if string(value[:n]) != label && string(value[:n]) != label[:len(label)-1] {
		t.Errorf("got %q", value[:n])
	}
}
