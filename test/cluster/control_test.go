package main

import (
	"os/exec"
	"testing"
)

func TestQuoteMakesOneWordOfAShell(t *testing.T) {
	for _, value := range []string{"", "/var/lib/mica/kubeconfig", "two words", "$(exit 1)`exit 1`", `it's "so"`, "a\nb;exit 1"} {
		out, err := exec.Command("/bin/sh", "-c", "value="+quote(value)+"; printf %s \"$value\"").Output()
		if err != nil || string(out) != value {
			t.Errorf("%q is %q to a shell, %v", value, out, err)
		}
	}
}
