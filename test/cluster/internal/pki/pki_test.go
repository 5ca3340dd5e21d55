package pki

import (
	"os"
	"path/filepath"
	"testing"
)

func TestKeysAreTheirOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	if _, err := NewAuthority(dir, "ca"); err != nil {
		t.Fatal(err)
	}
	if err := WriteKeyPair(dir, "service-accounts"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca.key", "service-accounts.key"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", name, info.Mode().Perm())
		}
	}
}
