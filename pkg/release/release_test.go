package release

import (
	"bytes"
	"testing"
)

func TestVersionIsTheLinkedRelease(t *testing.T) {
	if got := Version("v1.2.3"); got != "v1.2.3" {
		t.Errorf("the version is %q", got)
	}
	if Version("") == "" {
		t.Error("a binary without a release has no version at all")
	}
}

func TestCommandPrintsTheVersion(t *testing.T) {
	var out bytes.Buffer
	command := NewCommand("v1.2.3")
	command.SetOut(&out)
	command.SetArgs(nil)
	if err := command.Execute(); err != nil || out.String() != "v1.2.3\n" {
		t.Errorf("printed %q: %v", out.String(), err)
	}
}
